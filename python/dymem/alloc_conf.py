"""The settings of PyTorch's own allocator (PYTORCH_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF) under dymem: each key's fate.

  honoured    means the same under dymem: the memory fraction (a hard cap over all that dymem holds, private pools too),
              what belongs to pinned host memory, which stays PyTorch's, and what is of private pools alone.
  replaced    shapes an allocator that is not there any more. It is named once, in one warning, with what to do instead.

Private pools (torch.cuda.graph, torch.cuda.MemPool) are served by PyTorch's own allocator, which goes on reading all its
keys there. Neither torch nor the core is imported, no CUDA touched; PyTorch itself judges values, at its own time.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from typing import Callable, Mapping, Sequence

from dymem.config import shortened

# PyTorch reads the first for some keys and the second for others; where they differ, each may be in force.
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
# The functions of torch._C through which they are changed at run time, by the version of torch.
SETTERS = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")
_OFF = ("false", "0")


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of PyTorch's settings."""

    name: str
    honoured: str = ""              # how, or
    instead: str = ""               # what to do under dymem
    nothing: tuple[str, ...] = ()   # values that ask for nothing: those of PyTorch's defaults


KEYS: dict[str, Key] = {key.name: key for key in (
    Key("per_process_memory_fraction", "a hard cap over pool and private pools together"),
    Key("graph_capture_record_stream_reuse", "of private pools only, which read it"),
    Key("throw_on_cudamalloc_oom", "a request that cannot be served raises with it and without; observers of rejections are "
        "called only with it"),
    *(Key(f"pinned_{name}", "of pinned host memory, which PyTorch goes on serving") for name in (
        "use_cuda_host_register", "use_hip_host_register", "use_background_threads", "num_register_threads",
        "reserve_segment_size_mb", "free_catch_all", "max_round_threshold_mb", "max_cached_size_mb")),
    Key("backend", instead="dymem takes the place of either backend: leave it out", nothing=("native",)),
    Key("expandable_segments", instead="dymem maps memory where it is needed in any case: leave it out", nothing=_OFF),
    Key("max_split_size_mb", instead="every block can be split and its rest is reused: leave it out"),
    Key("max_non_split_rounding_mb", instead="every block can be split and its rest is reused: leave it out"),
    Key("roundup_power2_divisions", instead="sizes that differ a little share memory without rounding: leave it out"),
    Key("large_segment_size_mb", instead="granules follow the sizes asked for: leave it out"),
    Key("garbage_collection_threshold", instead="idle memory is reused first and given back at the limit: set "
        "dymem.install(limit=\"…GiB\")"),
    Key("release_lock_on_cudamalloc", instead="repeating iterations make no driver call that others could wait for: leave it "
        "out", nothing=_OFF),
    Key("release_lock_on_hipmalloc", instead="dymem serves CUDA only: leave it out", nothing=_OFF),
)}


def asked(environment: Mapping[str, str], variables: Sequence[str] = VARIABLES) -> dict[str, list[str]]:
    """Every key that the variables set, with all its values (of a list, "[…]"): which one is in force only PyTorch knows."""
    found: dict[str, list[str]] = {}
    for variable in variables:
        text = re.sub(r"\[[^\]]*\]", "[…]", environment.get(variable, ""))  # a list has commas of its own
        for item in text.split(","):
            key, _, value = (part.strip() for part in item.partition(":"))
            if key:
                found.setdefault(key, []).append(value)
    return found


def replaced(environment: Mapping[str, str], variables: Sequence[str] = VARIABLES) -> dict[str, str]:
    """The keys that ask for something and mean nothing under dymem, each with what to do instead."""
    told = {}
    for name, values in asked(environment, variables).items():
        key = KEYS.get(name)
        if key is None and name.startswith("pinned_"):
            continue  # of a newer PyTorch
        if key is None:
            told[shortened(name)] = "dymem does not know it"
        elif key.instead and any(value.lower() not in key.nothing for value in values):
            told[name] = key.instead
    return told


def warning(environment: Mapping[str, str], variables: Sequence[str] = VARIABLES) -> str | None:
    """One sentence for all of them; None if there is nothing to say."""
    told = replaced(environment, variables)
    if not told:
        return None
    names = " and ".join(variable for variable in variables if environment.get(variable))
    return (f"dymem takes the place of PyTorch's allocator, so these settings of {names} shape no more than the private "
            "pools of CUDA graphs and MemPool: " + "; ".join(f"{name} ({why})" for name, why in told.items()) + ".")


def watch(torch, backend: str, heed_fraction: Callable[[], object]) -> None:
    """From now on, settings changed at run time are answered as those of the environment are. Once a process.

    `backend` is the one that PyTorch had chosen before dymem took its place; `heed_fraction` gives the memory fraction of the
    settings to the pools that are made already.
    """
    for name in SETTERS:
        if (setter := getattr(torch._C, name, None)) is not None:
            setattr(torch._C, name, _telling(setter, name, backend, heed_fraction))


def _telling(setter: Callable[[str], object], name: str, backend: str,
             heed_fraction: Callable[[], object]) -> Callable[[str], object]:
    # PyTorch takes no backend but the allocator in place; under its own it would have taken this one, which asks for nothing.
    same = re.compile(rf"(^|,)\s*backend\s*:\s*{re.escape(backend)}\s*(?=,|$)")

    def tells(env: str) -> object:
        rest = same.sub("", env).removeprefix(",") if isinstance(env, str) else env
        answer = setter(rest) if rest or not env else None  # first: what PyTorch refuses is refused
        if "per_process_memory_fraction" in asked({name: env}, (name,)):
            heed_fraction()
        if (sentence := warning({name: env}, (name,))) is not None:
            warnings.warn(sentence, stacklevel=2)
        return answer

    tells.__name__, tells.__doc__ = name, setter.__doc__
    return tells
