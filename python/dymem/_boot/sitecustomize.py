"""Installs dymem in every Python process that `dymem run` starts, its children included.

`dymem run` puts this folder first on PYTHONPATH, so Python runs this file as it starts. It does nothing but wait:
when torch has been imported, and before anything can have used CUDA through it, dymem is installed with the
configuration in DYMEM_CONF (or, for `dymem compare`, whichever allocator it compares). A process that never imports
torch pays for one look-up. The sitecustomize that this one hides, if the environment has one, is run as ever.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_SWITCH = "DYMEM_RUN"
_REPORT = "DYMEM_REPORT"


def _run_hidden():
    paths = [path for path in sys.path if os.path.abspath(path or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _install():
    os.environ[_SWITCH] = "0"  # what the building of the adapter starts is not to wait for the adapter
    try:
        if importlib.util.find_spec("dymem") is None:
            sys.path.append(os.path.dirname(os.path.dirname(_HERE)))
        import dymem

        try:
            if os.environ.get(_REPORT):  # dymem compare: under which allocator, and what to measure
                from dymem.compare import observe

                observe.start(os.environ[_REPORT])
            else:
                dymem.install()
        except dymem.DymemError as error:
            raise SystemExit(f"dymem: {error}") from None
        except KeyboardInterrupt:  # while the adapter is built: where in dymem that was tells nobody anything
            print("dymem: stopped.", file=sys.stderr)
            raise SystemExit(130) from None
    finally:
        os.environ[_SWITCH] = "1"


class _AfterTorch:
    """A finder that finds nothing: it only lengthens the import of torch by the installation."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            _install()

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get(_SWITCH) == "1":
    sys.meta_path.insert(0, _AfterTorch())
_run_hidden()
