"""Results on disk: whether one can be written is asked before minutes of work, and it is written whole or not at all.

Every refusal is an InvalidArgument of one sentence, also for names whose bytes are no UTF-8. Where a rename would do
harm or cannot be, the target is written through: a link, pipe or device (/dev/stdout) stays what it is, and so does a
file in a folder that takes no new ones.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Sequence

from dymem.errors import InvalidArgument


def shown(path: Path) -> str:
    """A path for a sentence."""
    try:
        return os.fsencode(path).decode("utf-8", "replace")
    except UnicodeEncodeError:  # text that no name of a file can be made of
        return str(path).encode("utf-8", "replace").decode()


def check_writable(path: Path | None) -> None:
    """Can a file be written there? Tried, since permissions alone do not tell; nothing is left behind or changed."""
    if path is None:
        return
    if str(path) == "-":  # a file of that name would be a surprise
        raise InvalidArgument("'-' is not taken for stdout here; name /dev/stdout.")
    _check_place(path)
    try:
        if os.path.isfile(path):
            open(path, "ab").close()
        elif os.path.lexists(path):  # a pipe would be waited for, a link to nowhere would be followed
            if os.path.exists(path) and not os.access(path, os.W_OK):
                raise PermissionError(13, "permission denied")
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            os.unlink(path)
    except (OSError, ValueError) as error:
        raise InvalidArgument(_refusal(path, error)) from None


def _check_place(path: Path) -> None:
    """By os.path: unlike Path, it also answers for names that no file can have."""
    folder = path.absolute().parent
    if os.path.isdir(path):
        raise InvalidArgument(f"{shown(path)} is a folder; name a file in it.")
    if not os.path.isdir(folder):
        raise InvalidArgument(f"{shown(path)} cannot be written: there is no folder {shown(folder)}; name a file in a folder "
                              "that exists.")


def check_apart(written: Sequence[Path | None], read: Sequence[Path] = ()) -> None:
    """Is each target a file of its own, and none of those that are read? A slip of the hand must not cost a recording."""
    targets = [path for path in written if path is not None]
    for at, path in enumerate(targets):
        if any(_same(path, other) for other in read):
            raise InvalidArgument(f"{shown(path)} is what is read; name another file to write.")
        if any(_same(path, other) for other in targets[:at]):
            raise InvalidArgument(f"{shown(path)} is named for two results; name a file for each.")


def _same(path: Path, other: Path) -> bool:
    try:
        return os.path.abspath(path) == os.path.abspath(other) or \
            os.path.isfile(path) and os.path.samefile(path, other)  # a device, as /dev/null, may take several
    except (OSError, ValueError):
        return False


def check_folder(path: Path | None, option: str) -> None:
    """Can files be written in that folder? Tried, where it is not there by making it; nothing is left behind. `option` is
    what named it."""
    if path is None:
        return
    missing = [folder for folder in (Path(path), *Path(path).parents) if not os.path.lexists(folder)]
    try:
        make_folder(path, option)
    finally:
        for folder in missing:  # the innermost first
            with contextlib.suppress(OSError, ValueError):
                os.rmdir(folder)


def make_folder(path: Path | None, option: str) -> None:
    """A folder that takes files, made if it is not there; `option` is what named it."""
    if path is None:
        return
    try:
        if os.path.lexists(path) and not os.path.isdir(path):
            raise InvalidArgument(f"{shown(path)} is no folder; {option} names a folder, which is made if it is not there.")
        os.makedirs(path, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidArgument):
            raise
        reason = getattr(error, "strerror", None) or error
        raise InvalidArgument(f"{shown(path)} cannot be a folder of files: {reason}; name another with {option}.") from None


def write_bytes(path: Path, data: bytes) -> None:
    """Beside the target, then renamed; nothing is left of it if it cannot be written."""
    _check_place(path)
    folder = path.absolute().parent
    try:
        if os.path.lexists(path) and (path.is_symlink() or not path.is_file() or not os.access(folder, os.W_OK)):
            path.write_bytes(data)
            return
        part = folder / f".dymem-{os.getpid()}.part"
        try:
            part.write_bytes(data)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise InvalidArgument(_refusal(path, error)) from None


def _refusal(path: Path, error: Exception) -> str:
    reason = "no file can have that name" if isinstance(error, ValueError) else getattr(error, "strerror", None) or error
    return f"{shown(path)} cannot be written: {reason}."
