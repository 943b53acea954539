"""What a bench asks before it works: are the packages here, can its results be written? If not: one sentence, exit code 2.

Minutes of a card are not to be spent on a file that cannot be. Importing it also finds the dymem of a checkout that was
built in place, so it comes before anything of dymem.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

if importlib.util.find_spec("dymem") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))

from dymem.errors import InvalidArgument  # noqa: E402
from dymem.writing import check_apart, check_writable, make_folder  # noqa: E402


def stop(sentence: str) -> NoReturn:
    print(f"{Path(sys.argv[0]).stem}: {sentence}", file=sys.stderr)
    sys.exit(2)


def missing(packages: Iterable[str]) -> list[str]:
    return [name for name in packages if importlib.util.find_spec(name) is None]


def require(*packages: str) -> None:
    if absent := missing(packages):  # into the Python that runs this, which need not be the one of the `pip` on PATH
        stop(f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed here; run `{sys.executable} -m pip "
             f"install {' '.join(absent)}`.")


def check_targets(*files: Path | None, folder: Path | None = None, option: str = "--out") -> None:
    """No folder is made for a file, which may be a slip of the hand; one that `option` names for files is."""
    try:
        for file in files:
            check_writable(file)
        check_apart(files)
        make_folder(folder, option)
    except InvalidArgument as error:
        stop(str(error))
