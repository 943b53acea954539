"""dymem.install(): make dymem PyTorch's CUDA allocator for the rest of this process.

Nothing here touches CUDA: no device is asked for and no context made, so a script may install and then fork its
data-loading workers, and a machine without a GPU only fails at its first allocation. What can go wrong is said in
one sentence, as an InstallError, before anything was changed.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import warnings
from typing import Mapping

from dymem import alloc_conf, nccl_settings
from dymem.config import Config
from dymem.errors import ConfigError, InstallError, InvalidArgument

_lock = threading.Lock()
_installed: Config | None = None


def _unlock_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # whoever held it is not there


os.register_at_fork(after_in_child=_unlock_in_child)


def install(config: Config | Mapping[str, object] | str | None = None, **keys: object) -> None:
    """Make dymem PyTorch's CUDA allocator; call it before the first use of CUDA.

    `config` is a Config, a mapping or the text of DYMEM_CONF; without one, DYMEM_CONF is used. `keys` (limit="20GiB",
    trace=True, ...) are set on top of it. Installing again with the same configuration does nothing, with another one
    raises InstallError. The first call on a machine compiles the adapter: about a minute of one core's time,
    shared by the cores that there are.
    """
    global _installed
    wanted = _configuration(config, keys)
    with _lock:
        if _installed is not None:
            _refuse_if_replaced()
            if _installed == wanted:
                return
            raise InstallError(f"dymem is installed in this process already, with the configuration "
                               f"'{_installed.to_conf() or 'default'}', not '{wanted.to_conf() or 'default'}': call "
                               "dymem.install() once, with one configuration.")
        torch = _import_torch()
        _refuse_if_cuda_was_used(torch)
        from dymem import _adapter_build

        adapter = _adapter_build.load(torch)
        if adapter.native_initialized():
            raise InstallError(_TOO_LATE)
        from dymem import _core

        if (sentence := alloc_conf.warning(os.environ)) is not None:
            warnings.warn(sentence, stacklevel=2)  # where warnings are errors this raises: nothing was changed yet
        try:
            _core.abi.configure(wanted.to_conf())
        except InvalidArgument as error:
            raise InstallError(str(error).removeprefix("dymem: ")) from None
        backend = torch.cuda.get_allocator_backend()
        adapter.install()
        nccl_settings.keep_captured_buffers_unregistered(os.environ, wanted.backing)
        alloc_conf.watch(torch, backend, adapter.heed_fraction_of_settings)
        _installed = wanted
        if wanted.mobility == "auto":
            from dymem.mobility import automatic

            automatic.start(adapter)


_TOO_LATE = ("CUDA was used in this process before dymem.install(), and PyTorch's allocator cannot be replaced any more: "
             "call dymem.install() right after importing torch, before any tensor or model is put on the GPU.")


def _configuration(config, keys: Mapping[str, object]) -> Config:
    if config is None:
        config = Config.from_environment()
    elif isinstance(config, str):
        config = Config.from_conf(config)
    elif isinstance(config, Mapping):
        config = Config.from_mapping(config)
    elif not isinstance(config, Config):
        raise ConfigError(f"a {type(config).__name__} is no configuration: give a dymem.Config, a mapping or text such as "
                          "'limit:20GiB'.")
    if not keys:
        return config
    return Config.from_mapping({**dataclasses.asdict(config), **keys})


def _import_torch():
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InstallError("dymem.install() makes dymem the allocator of PyTorch, and torch is not installed here: run `pip "
                           "install torch`.") from None
    if not hasattr(torch, "version"):  # a folder of that name beside the script is enough
        where = getattr(torch, "__file__", None) or ", ".join(getattr(torch, "__path__", []))
        raise InstallError(f"what is imported as torch here is not PyTorch ({where}): rename it, or run from another folder.")
    if torch.version.cuda is None:
        raise InstallError(f"this torch ({torch.__version__}) was built without CUDA, so there is nothing to allocate for: "
                           "install a CUDA build of torch.")
    return torch


def _refuse_if_replaced() -> None:
    """PyTorch lets anyone replace an allocator that was not used yet."""
    import torch
    from dymem import _torch

    if not _torch.cuda_allocator_is_ours():
        raise InstallError(f"another allocator ('{torch.cuda.get_allocator_backend()}') has taken dymem's place since "
                           "dymem.install(): leave out the call that did so (torch.cuda.memory.change_current_allocator).")


def _refuse_if_cuda_was_used(torch) -> None:
    if torch.cuda._is_in_bad_fork():
        raise InstallError("this process was forked from one that had used CUDA, and can use no GPU: start workers with the "
                           "'spawn' method.")
    if torch.cuda.is_initialized():
        raise InstallError(_TOO_LATE)
    if (backend := torch.cuda.get_allocator_backend()) not in ("native", "cudaMallocAsync"):
        raise InstallError(f"another allocator ('{backend}') has replaced PyTorch's in this process already: use one of the "
                           "two.")
