"""The helpers of these tests lie beside them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def start(tmp_path, traces):
    """A command as a shell starts it; `{kmeans}` is a recording."""

    def start(*words, **more):
        environment = {**os.environ, "DYMEM_CONF": "", **more.pop("env", {})}
        words = [str(word).format(kmeans=traces / "kmeans.pickle.xz") for word in words]
        return subprocess.Popen([sys.executable, "-m", "dymem", *words], cwd=tmp_path, text=True, env=environment,
                                **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more})

    return start
