"""Modules of bench/, which is no package."""

import importlib

import pytest


@pytest.fixture(scope="module")
def bench(request):
    """Imports a module of bench/ or bench/placement/ by its name."""
    patch = pytest.MonkeyPatch()
    folder = request.config.rootpath / "bench"
    patch.syspath_prepend(str(folder / "placement"))
    patch.syspath_prepend(str(folder))
    yield importlib.import_module
    patch.undo()
