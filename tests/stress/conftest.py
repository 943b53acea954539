"""Worker processes over the machines of machines.py, which lies beside the tests."""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


@pytest.fixture
def start(root):
    """What starts a worker with a habit, as `Bench` wants it; remembers them all."""
    from dymem.stress.on_workers import WorkerProcess, worker_command

    started = []

    def start(habit):
        paths = [str(root / "python"), str(HERE)]
        started.append(habit)
        return WorkerProcess(worker_command(habit, "machines:make"), {**os.environ, "PYTHONPATH": os.pathsep.join(paths)})

    start.started = started
    return start
