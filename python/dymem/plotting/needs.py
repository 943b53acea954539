"""The optional packages of pictures: matplotlib without a display, or one line that says how to get it."""

from __future__ import annotations

import logging
import os

from dymem.errors import MissingPackage


def require() -> None:
    """MissingPackage unless numpy and matplotlib import; chooses the backend that needs no display. The one place that asks."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    logger = logging.getLogger("matplotlib")
    if logger.level == logging.NOTSET:  # it warns of its font cache and of its folders, which is no news of ours
        logger.setLevel(logging.ERROR)
    try:
        import matplotlib
        import matplotlib.figure  # what pictures are made of; a broken installation shows here
        import numpy  # noqa: F401
    except ImportError as error:
        raise MissingPackage(f"pictures need matplotlib ({error}); pip install matplotlib numpy") from None
    matplotlib.use("Agg")
