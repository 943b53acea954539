"""Reads a pickle that somebody else made, without running any of it.

A pickle is a program: what it names, it may call. This unpickler knows no names at all, so a file that holds
anything but numbers, text, lists, tuples, dicts and sets is refused before it did anything. Memory is bounded too,
since a few bytes can ask for gigabytes: compressed files are opened only up to `UNPACKED_MAX`, and while the
unpickler runs the process may grow by a multiple of the file and no more.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import pickle
import zlib
from pathlib import Path
from typing import Iterator

from dymem.config import format_bytes
from dymem.errors import TraceError

UNPACKED_MAX = 8 << 30   # bytes of pickle; a snapshot of a million events with Python stacks has about one GiB
_GROWTH = 64             # bytes of objects for one byte of pickle: an empty dict is one byte and 64 of memory
_GROWTH_LEAST = 1 << 30
_CHUNK = 16 << 20
NO_NAME = "no file can have that name."
_TOO_LARGE = "it unpacks to more than this machine's memory holds; record fewer events."


class _Plain(pickle.Unpickler):
    def find_class(self, module, name):
        raise TraceError(f"it is not plain data: it asks for {module}.{name}, and nothing of it was run.")

    def persistent_load(self, pid):
        raise pickle.UnpicklingError("it refers to objects outside of itself")


def unpacking(path: Path):
    """The file unpacked, by what its first bytes say rather than by its name."""
    try:
        file = open(path, "rb")
    except ValueError:  # a null, or half a pair of surrogates
        raise TraceError(NO_NAME) from None
    head = file.peek(6)[:6]
    if head == b"\xfd7zXZ\x00":
        return lzma.open(file)
    if head[:2] == b"\x1f\x8b":
        return gzip.open(file)
    return file


def chunks(path: Path, limit: int = UNPACKED_MAX) -> Iterator[bytes]:
    """The file unpacked, piece by piece; TraceError if it is not there, cut short, or unpacks to more than `limit`."""
    length = 0
    try:
        with unpacking(path) as file:
            while chunk := file.read(_CHUNK):
                length += len(chunk)
                if length > limit:
                    raise TraceError(f"it unpacks to more than {format_bytes(limit)}; record fewer events.")
                yield chunk
    except FileNotFoundError:
        raise TraceError("there is no such file.") from None
    except IsADirectoryError:
        raise TraceError("it is a folder; name the files in it.") from None
    except EOFError:
        raise TraceError("it is cut short; copy it again.") from None
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"its compression is damaged ({error}); copy it again.") from None
    except OSError as error:
        raise TraceError(f"it cannot be read: {error.strerror or error}.") from None
    except MemoryError:
        raise TraceError(_TOO_LARGE) from None


def read_bytes(path: Path, limit: int = UNPACKED_MAX) -> bytearray:
    """What chunks() tells, in one piece."""
    data = bytearray()
    try:
        for chunk in chunks(path, limit):
            data += chunk
    except MemoryError:
        raise TraceError(_TOO_LARGE) from None
    return data


@contextlib.contextmanager
def _bounded_growth(size: int):
    """Lets the process take only so much more address space; where that cannot be set, it is not."""
    try:
        import resource

        with open("/proc/self/statm") as statm:
            now = int(statm.read().split()[0]) * resource.getpagesize()
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = now + max(_GROWTH_LEAST, _GROWTH * size)
        if soft != resource.RLIM_INFINITY:
            most = min(most, soft)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    except (ImportError, OSError, ValueError):
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def unpickle(data: bytes | bytearray):
    """The plain data that the pickle in `data` holds; TraceError for anything else."""
    if not data:
        raise TraceError("it is empty.")
    try:
        with _bounded_growth(len(data)):
            return _Plain(io.BytesIO(data)).load()
    except TraceError:
        raise
    except EOFError:
        raise TraceError("it is cut short; copy it again.") from None
    except MemoryError:
        raise TraceError("it asks for far more memory than its size explains; it is damaged or hostile.") from None
    except Exception as error:  # a damaged pickle makes the unpickler raise nearly anything
        if isinstance(error, pickle.UnpicklingError) and "truncated" in str(error):
            raise TraceError("it is cut short; copy it again.") from None
        raise TraceError(f"it is neither a PyTorch snapshot nor a trace of dymem ({type(error).__name__}).") from None
