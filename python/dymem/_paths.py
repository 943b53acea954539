"""Where the pieces of dymem lie: the shared library, the recordings, and the C++ that the adapter is built from.

A wheel carries the sources in dymem/_src; a checkout that was built in place has them two folders up.
"""

from __future__ import annotations

from pathlib import Path

from dymem.errors import InstallError

PACKAGE = Path(__file__).resolve().parent


def library_path() -> str:
    """libdymem.so, for `torch.cuda.memory.CUDAPluggableAllocator(library_path(), "dymem_malloc", "dymem_free")`."""
    path = PACKAGE / "libdymem.so"
    if not path.exists():
        raise InstallError(f"{path} does not exist: build dymem with `pip install .` in its checkout.")
    return str(path)


def include_path() -> str:
    """The folder of dymem.h, the interface for C: `cc -I FOLDER program.c LIBRARY_PATH`."""
    for folder in (PACKAGE / "include", PACKAGE.parent.parent / "allocator" / "abi"):
        if (folder / "dymem.h").exists():
            return str(folder)
    raise InstallError(f"dymem.h is not beside {PACKAGE}: install dymem again with `pip install .`.")


def source_dir() -> Path:
    """The folder that holds allocator/: include directory and sources of the adapter."""
    for root in (PACKAGE / "_src", PACKAGE.parent.parent):
        if (root / "allocator" / "pool" / "pool.hpp").exists():
            return root
    raise InstallError(f"dymem's C++ sources are not beside {PACKAGE}: install dymem again with `pip install .`.")


def traces_dir() -> Path:
    """The bundled recordings."""
    return PACKAGE / "traces"
