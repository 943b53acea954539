"""`dymem compare`: the same work under several allocators, in one table.

With a GPU, the bundled workloads or a script of the user's run under each allocator (compare_gpu.py). Without one (or, for
the workloads, from an installed package, which has no bench/), the bundled recordings are replayed on the emulated device,
beside what PyTorch's allocator reserved for them on the card; that needs no torch.
"""

from __future__ import annotations

from pathlib import Path

from dymem import __version__, _paths
from dymem.cli.console import chosen, complain, files_before, progress, show, write_json
from dymem.cli.compare_gpu import Asked, compare_script, compare_training, pictures_in
from dymem.cli.environment import replay_keys
from dymem.cli.page import write_page
from dymem.cli.replay_workers import replay_apart
from dymem.cli.tables import compare_table
from dymem.compare import card, pictures, training
from dymem.config import Config
from dymem.errors import InvalidArgument, MissingPackage
from dymem.interrupts import stoppable
from dymem.replaying import LAG_MS, lag_ns
from dymem.plotting import needs
from dymem.trace import name_of
from dymem.writing import check_apart, check_folder, check_writable


def main(asked: Asked, *, program: list[str], recordings: bool, lag_ms: float) -> int:
    with stoppable():  # else what was started would go on
        return _compare(asked, program, recordings, lag_ms)


def _compare(asked: Asked, program: list[str], recordings: bool, lag_ms: float) -> int:
    lag_ns(lag_ms)
    for path in (asked.json_file, asked.html_file):
        check_writable(path)
    check_apart([asked.json_file, asked.html_file])
    if asked.folder is not None:
        needs.require()  # a page can do without pictures, a folder of them cannot
        check_folder(asked.folder, "--pictures")
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
    """Rows by recording, and a sentence for each that failed."""
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

        replay_apart(paths, lag_ms, keys, tell)
    return results, failed


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
