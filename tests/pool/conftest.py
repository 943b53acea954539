"""Lets the tests of this folder share devices.py and pool_model.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
