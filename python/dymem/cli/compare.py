"""`dymem compare`: the same work under several allocators, in one table.

With a GPU, the bundled workloads or a script of the user's run under each allocator (compare_gpu.py). Without one (or, for
the workloads, from an installed package, which has no bench/), the bundled recordings are replayed on the emulated device,
beside what PyTorch's allocator reserved for them on the card; that needs no torch.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Callable, Iterator

from dymem import __version__, _paths
from dymem.cli.console import chosen, complain, files_before, progress, show, write_json
from dymem.cli.compare_gpu import Asked, compare_script, compare_training, pictures_in
from dymem.cli.environment import replay_keys
from dymem.cli.page import write_page
from dymem.cli.tables import compare_table
from dymem.compare import card, pictures, training
from dymem.config import Config
from dymem.errors import DymemError, InvalidArgument, MissingPackage
from dymem.replaying import LAG_MS, lag_ns, replay_recording
from dymem.plotting import needs
from dymem.trace import load, name_of
from dymem.writing import check_apart, check_folder, check_writable


def main(asked: Asked, *, program: list[str], recordings: bool, lag_ms: float) -> int:
    lag_ns(lag_ms)
    for path in (asked.json_file, asked.html_file):
        check_writable(path)
    check_apart([asked.json_file, asked.html_file])
    check_folder(asked.folder, "--pictures")
    if asked.folder is not None:
        needs.require()  # a page can do without pictures, a folder of them cannot
    lag = None if lag_ms == LAG_MS else lag_ms  # None: not asked for
    if program:
        if not program[0].endswith(".py"):
            raise InvalidArgument(f"'{program[0]}' is no script (its name does not end in .py); workloads and recordings are "
                                  "named with --only.")
        if recordings:
            raise InvalidArgument("--recordings replays the bundled recordings; leave it out beside a script.")
        if not Path(program[0]).is_file():
            raise InvalidArgument(f"there is no script {program[0]}.")
        if card.gpu_count() == 0 and Config.from_environment().driver != "emulated":
            raise InvalidArgument("there is no GPU here to run the script on; without one, dymem compare replays recordings.")
        _idle("the steps of a script are those of its optimizer", "--iterations", asked.iterations, "--shapes", asked.shapes)
        _idle("it is for replays", "--lag", lag)
        return compare_script(program, asked)
    if not recordings and card.gpu_count() > 0:
        if training.TRAIN.exists():
            _idle("it is for replays", "--lag", lag)
            return compare_training(asked)
        complain(f"a GPU is here, but not {training.TRAIN}: training needs a checkout; the recordings are replayed instead.")
    if asked.caps or asked.allocators or asked.every:
        raise InvalidArgument("--cap, --allocators and --all train, which needs a GPU and a checkout; without them the "
                              "recordings are replayed.")
    _idle("recordings are replayed once, on no clock", "--repeats", asked.repeats, "--seconds", asked.seconds, "--iterations",
          asked.iterations, "--shapes", asked.shapes)
    return compare_recordings(asked, lag_ms)


def _idle(reason: str, *flags: object) -> None:
    """Refuses those of the options, given as name, value, name, value …, that were set and mean nothing here."""
    given = [str(name) for name, value in zip(flags[::2], flags[1::2]) if value is not None]
    if given:
        raise InvalidArgument(f"{' and '.join(given)} {'means' if len(given) == 1 else 'mean'} nothing here: {reason}; leave "
                              f"{'it' if len(given) == 1 else 'them'} out.")


# --- recordings


def _end_with_parent() -> None:
    """In a worker: without this, workers of a parent that was killed would wait for their next task for ever."""

    def wait() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _replay_file(path: str, lag_ms: float, keys: dict) -> list[dict]:  # runs in a worker process
    return [replay_recording(recording, lag_ms=lag_ms, config=keys) for recording in load(path)]


def compare_recordings(asked: Asked, lag_ms: float) -> int:
    paths = {name_of(path): path for path in sorted(_paths.traces_dir().glob("*.pickle.xz"))}
    if not paths:
        raise InvalidArgument(f"there are no recordings in {_paths.traces_dir()}; install dymem again.")
    names = chosen(list(paths), asked.only)
    keys = replay_keys()
    results, failed = _replayed({name: paths[name] for name in names}, lag_ms, keys)
    rows = [row for name in names for row in results.get(name, [])]

    def tell() -> None:
        if rows:
            show(compare_table(rows, lag_ms), asked.markdown)
        for sentence in failed:
            complain(sentence)

    with files_before(tell):
        write_json(asked.json_file, {"kind": "recordings", "traces": rows, "errors": failed, "dymem": __version__})
        with pictures_in(asked) as folder:
            if rows and folder is not None:
                drawn = _drawn({name: paths[name] for name in names if name in results}, folder, keys, asked.folder is None)
                write_page(asked.html_file, "dymem compare: recordings", [compare_table(rows, lag_ms), *drawn, *failed])
    return 2 if failed else int(any(row["oom"] or row["audit"] for row in rows))


def _replayed(paths: dict[str, Path], lag_ms: float, keys: dict) -> tuple[dict[str, list[dict]], list[str]]:
    """Rows by recording, and a sentence for each that failed.

    What a process that died was at is replayed once more, alone, which tells whose fault it was.
    """
    results: dict[str, list[dict]] = {}
    failed: list[str] = []
    with progress() as bar:
        task = bar.add_task("replaying recordings", total=len(paths))

        def tell(name: str, rows: list[dict] | None, error: str = "") -> None:
            if rows is not None:
                results[name] = rows
            else:
                failed.append(f"{name}: {error}")
            bar.update(task, advance=1, description=f"replayed {name}")

        by_size = sorted(paths, key=lambda name: -paths[name].stat().st_size)  # the longest first: none is waited for alone
        for name in _round(by_size, paths, lag_ms, keys, min(2, len(os.sched_getaffinity(0))), tell):
            if _round([name], paths, lag_ms, keys, 1, tell):
                tell(name, None, f"the process that replayed it died; `dymem replay {paths[name]}` shows how.")
    return results, failed


def _round(names: list[str], paths: dict[str, Path], lag_ms: float, keys: dict, workers: int,
           tell: Callable[..., None]) -> list[str]:
    """Replays in so many processes; the names of those that a process which died left behind.

    Each process is an executor of its own, given one recording at a time: one of several would lose all that wait in it
    with any of them, and its bookkeeping breaks when a process dies while another one is being started.
    """
    waiting, left = collections.deque(names), []
    idle = [_worker() for _ in names[:workers]]
    running: dict[concurrent.futures.Future, tuple[str, concurrent.futures.Executor]] = {}
    try:
        while waiting or running:
            while waiting and idle:
                name, worker = waiting.popleft(), idle.pop()
                try:
                    with _interrupts_for_the_parent():
                        running[worker.submit(_replay_file, str(paths[name]), lag_ms, keys)] = name, worker
                except BrokenProcessPool:  # it died between two recordings
                    waiting.appendleft(name)
                    idle.append(_worker())
            for done in concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED).done:
                name, worker = running.pop(done)
                try:
                    tell(name, done.result())
                except BrokenProcessPool:
                    left.append(name)
                    worker = _worker()
                except DymemError as error:
                    tell(name, None, str(error))
                idle.append(worker)
    except BaseException:  # what they are at is of no use any more
        for process in multiprocessing.active_children():
            process.kill()
        for worker in (*idle, *(worker for _, worker in running.values())):
            worker.shutdown(wait=False, cancel_futures=True)
        raise
    for worker in idle:
        worker.shutdown()
    return sorted(left, key=names.index)


def _worker() -> concurrent.futures.Executor:
    """One process, started by the first recording that it is given."""
    return concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"),
                                                  initializer=_end_with_parent)


@contextlib.contextmanager
def _interrupts_for_the_parent() -> Iterator[None]:
    """Processes that are started in the block never see Ctrl-C, which reaches all of a terminal: this one ends them."""
    resource_tracker.ensure_running()  # else it starts with the first of them, and lets the signal through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _drawn(paths: dict[str, Path], folder: Path, keys: dict, scratch: bool) -> list[Path | str]:
    """Who held which addresses, PyTorch's layout above dymem's: one PNG for each recording, or why there is none. `scratch`:
    the folder is only for as long as a page is made, which can do without."""
    made: list[Path | str] = []
    with progress() as bar:
        task = bar.add_task("drawing addresses", total=len(paths))
        for name, path in paths.items():
            target = folder / f"addresses-{name}.png"
            try:
                pictures.replayed_addresses(path, target, keys)
            except MissingPackage as error:  # it would be missing for the others too
                complain(error)
                return [str(error)]
            except InvalidArgument as error:
                if not scratch:
                    raise
                complain(f"the page has no pictures: {error} Set TMPDIR to a folder with room for them.")
                return [str(error)]
            made.append(target)
            bar.update(task, advance=1, description=f"drew {name}")
    return made
