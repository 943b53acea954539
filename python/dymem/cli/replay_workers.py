"""Recordings replayed in processes of their own, so that one which dies costs no more than a second try.

Each worker has a pipe whose other end only it holds: the pipe ends with it, however it dies and whatever it was at. It
is given one recording at a time. What has no answer then is replayed once more, alone, which tells whose fault it was.
"""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import signal
import threading
from multiprocessing import connection, resource_tracker
from multiprocessing.pool import ExceptionWithTraceback
from pathlib import Path
from typing import Callable, Iterator

from dymem.errors import DymemError
from dymem.replaying import replay_recording
from dymem.trace import load
from dymem.trace.child import ReaderKilled

Tell = Callable[..., None]  # a recording's name, its rows or None, then why there are none


def replay_apart(paths: dict[str, Path], lag_ms: float, keys: dict, tell: Tell) -> None:
    """Tells of each recording once, in the order of their ends. An error that is not dymem's own is raised."""
    by_size = sorted(paths, key=lambda name: -paths[name].stat().st_size)  # the longest first: none is waited for alone
    for name in _round(by_size, paths, lag_ms, keys, min(2, len(os.sched_getaffinity(0))), tell):
        for error in _round([name], paths, lag_ms, keys, 1, tell).values():
            tell(name, None, error)


def _round(names: list[str], paths: dict[str, Path], lag_ms: float, keys: dict, workers: int,
           tell: Tell) -> dict[str, str]:
    """Replays in so many processes; what was killed, the process or the reader under it, and a sentence for each."""
    waiting, left = collections.deque(names), {}
    crew = [_Worker(lag_ms, keys) for _ in names[:workers]]
    running: dict[_Worker, str] = {}
    try:
        while waiting or running:
            for worker in crew:
                if waiting and worker not in running:
                    running[worker] = waiting.popleft()
                    worker.begin(paths[running[worker]])
            ready = connection.wait([worker.link for worker in running])
            for worker in [worker for worker in running if worker.link in ready]:
                name = running.pop(worker)
                try:
                    rows, error = worker.link.recv()
                except (EOFError, OSError):  # it died, perhaps in the midst of its answer
                    left[name] = f"the process that replayed it died; `dymem replay {paths[name]}` shows how."
                    worker.end()
                    crew[crew.index(worker)] = _Worker(lag_ms, keys)
                    continue
                if isinstance(error, ReaderKilled):
                    left[name] = str(error)
                elif isinstance(error, DymemError):
                    tell(name, None, str(error))
                elif error is not None:
                    raise error
                else:
                    tell(name, rows)
    finally:  # what they are at is of no use any more
        for worker in crew:
            worker.end()
    return {name: left[name] for name in names if name in left}


class _Worker:
    """A process that is started with the first recording it is given."""

    def __init__(self, lag_ms: float, keys: dict) -> None:
        self._settings = lag_ms, keys
        self._process: multiprocessing.process.BaseProcess | None = None
        self.link: connection.Connection | None = None

    def begin(self, path: Path) -> None:
        if self._process is None or not self._process.is_alive():  # one that was killed while it was idle
            self.end()
            self._start()
        with contextlib.suppress(OSError):  # it has just died: what is read from the link says so
            self.link.send(str(path))

    def _start(self) -> None:
        with _interrupts_for_the_parent():
            context = multiprocessing.get_context("spawn")
            self.link, theirs = context.Pipe()
            with theirs:  # closed here, so that the link ends with the process
                process = context.Process(target=_serve, args=(theirs, *self._settings), daemon=True)
                process.start()
            self._process = process

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
        if self.link is not None:
            self.link.close()
            self.link = None


@contextlib.contextmanager
def _interrupts_for_the_parent() -> Iterator[None]:
    """Processes that are started in the block never see Ctrl-C, which reaches all of a terminal: this one ends them."""
    resource_tracker.ensure_running()  # else it starts with the first of them, and lets the signal through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in a worker


def _serve(link: connection.Connection, lag_ms: float, keys: dict) -> None:
    _end_with_parent()
    while True:
        try:
            path = link.recv()
        except EOFError:
            return
        try:
            answer = _replay_file(path, lag_ms, keys), None
        except BaseException as error:
            answer = None, _told(error)
        try:
            link.send(answer)
        except OSError:  # nobody waits for it any more
            return
        except Exception as error:  # it cannot be pickled
            link.send((None, _told(error)))


def _told(error: BaseException) -> ExceptionWithTraceback:
    """Arrives as `error` itself, with its traceback as its cause."""
    return ExceptionWithTraceback(error, error.__traceback__)


def _end_with_parent() -> None:
    """Without this, a worker of a parent that was killed would first replay what it is at to the end."""

    def wait() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _replay_file(path: str, lag_ms: float, keys: dict) -> list[dict]:
    return [replay_recording(recording, lag_ms=lag_ms, config=keys) for recording in load(path)]
