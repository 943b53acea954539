"""`dymem compare`: the same work under PyTorch's allocator and under dymem, in one table.

With a GPU, bench/train.py of the checkout trains each bundled workload twice, native and dymem, each in a process of
its own. Without one (or from an installed package, which has no bench/), the bundled recordings are replayed on the
emulated device, beside what PyTorch's allocator reserved for them on the card; that needs no torch.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from dymem import __version__, _paths
from dymem.cli.console import check_writable, chosen, complain, progress, show, write_json
from dymem.cli.tables import compare_table, training_table
from dymem.errors import DymemError, InvalidArgument
from dymem.replaying import lag_ns, replay_recording
from dymem.trace import load, name_of

TRAIN = _paths.PACKAGE.parent.parent / "bench" / "train.py"


def gpu_count() -> int:
    """GPUs that the driver reports; asked without a context, so that nothing of the device is taken."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    return count.value if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def main(*, json_file: Path | None, only: list[str] | None, recordings: bool, lag_ms: float,
         markdown: bool = False) -> int:
    lag_ns(lag_ms)
    check_writable(json_file)
    if not recordings and gpu_count() > 0:
        if TRAIN.exists():
            return compare_training(json_file, only, markdown)
        complain(f"a GPU is here, but not {TRAIN}: training needs a checkout; the recordings are replayed instead.")
    return compare_recordings(json_file, only, lag_ms, markdown)


# --- recordings


def _end_with_parent() -> None:
    """In a worker: without this, workers of a parent that was killed would wait for their next task for ever."""

    def wait() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _replay_file(path: str, lag_ms: float) -> list[dict]:  # runs in a worker process
    return [replay_recording(recording, lag_ms=lag_ms) for recording in load(path)]


def compare_recordings(json_file: Path | None, only: list[str] | None, lag_ms: float, markdown: bool) -> int:
    paths = {name_of(path): path for path in sorted(_paths.traces_dir().glob("*.pickle.xz"))}
    if not paths:
        raise InvalidArgument(f"there are no recordings in {_paths.traces_dir()}; install dymem again.")
    names = chosen(list(paths), only)
    by_size = sorted(names, key=lambda name: -paths[name].stat().st_size)  # the longest first: none is waited for alone
    results, failed = {}, []
    workers = min(2, len(os.sched_getaffinity(0)))
    context = multiprocessing.get_context("spawn")
    with progress() as bar, concurrent.futures.ProcessPoolExecutor(
            workers, mp_context=context, initializer=_end_with_parent) as pool:
        task = bar.add_task("replaying recordings", total=len(names))
        started = {pool.submit(_replay_file, str(paths[name]), lag_ms): name for name in by_size}
        for done in concurrent.futures.as_completed(started):
            name = started[done]
            try:
                results[name] = done.result()
            except DymemError as error:
                failed.append(f"{name}: {error}")
            except BrokenProcessPool:
                failed.append(f"{name}: the process that replayed it died; `dymem replay {paths[name]}` shows how.")
            bar.update(task, advance=1, description=f"replayed {name}")
    rows = [row for name in names for row in results.get(name, [])]
    if rows:
        show(compare_table(rows, lag_ms), markdown)
    for sentence in failed:
        complain(sentence)
    write_json(json_file, {"kind": "recordings", "traces": rows, "errors": failed, "dymem": __version__})
    return 2 if failed else int(any(row["oom"] or row["audit"] for row in rows))


# --- training, on a GPU


def _train(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(TRAIN), *arguments], capture_output=True, text=True)


def compare_training(json_file: Path | None, only: list[str] | None, markdown: bool) -> int:
    listing = _train("--list")
    if listing.returncode != 0:
        raise InvalidArgument(f"bench/train.py cannot list its workloads: {last_line(listing)}")
    names = chosen(listing.stdout.split(), only)
    rows, failed = [], []
    with progress() as bar, tempfile.TemporaryDirectory() as folder:
        task = bar.add_task("training", total=2 * len(names))
        for name in names:
            row = {"workload": name}
            for allocator in ("native", "dymem"):
                bar.update(task, description=f"{name} under {allocator}")
                try:
                    row[allocator] = _trained(name, allocator, Path(folder) / f"{name}.{allocator}.json")
                except InvalidArgument as error:
                    failed.append(str(error))
                bar.update(task, advance=1)
            if "native" in row and "dymem" in row:
                rows.append(row)
    if rows:
        show(training_table(rows), markdown)
    for sentence in failed:
        complain(sentence)
    write_json(json_file, {"kind": "training", "workloads": rows, "errors": failed, "dymem": __version__})
    return 1 if failed else 0


def _trained(workload: str, allocator: str, target: Path) -> dict:
    """What one run of bench/train.py measured; InvalidArgument with its last line if it did not train to the end."""
    run = _train(workload, "--allocator", allocator, "--json", str(target))
    result = json.loads(target.read_text()) if target.exists() else {}
    if run.returncode != 0 or not result or result.get("out_of_memory"):
        raise InvalidArgument(f"{workload} under {allocator}: {result.get('out_of_memory') or last_line(run)}")
    return result


def last_line(run: subprocess.CompletedProcess) -> str:
    lines = (run.stderr or run.stdout).strip().splitlines()
    return lines[-1] if lines else f"it ended with code {run.returncode} and said nothing."
