"""Which adapters are built, against what, and where; is there one for the torch that would be imported?"""

from __future__ import annotations

import contextlib
import json
import os

from dymem._adapter_build import cache_folder
from dymem.doctor.finding import Finding
from dymem.doctor.software import torch_version


def built() -> list[dict]:
    """The stamp of each adapter in the cache (torch, cuda, python, compiler), with its folder."""
    stamps = []
    for stamp in sorted(cache_folder().glob("*/built.json")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            content = json.loads(stamp.read_text())
            stamps.append({key: content.get(key) for key in ("torch", "cuda", "python", "compiler", "seconds")}
                          | {"torch": str(content["torch"]), "folder": str(stamp.parent)})
    return stamps


def check_adapter() -> Finding:
    """Built for a torch of this version? (The build itself also looks at the exact build and at our sources.)"""
    folder, version = cache_folder(), str(torch_version()[0])
    stamps = built()
    facts = {"cache": str(folder), "built": stamps}
    mine = [stamp for stamp in stamps if stamp["torch"].split("+")[0] == version.split("+")[0]]
    if mine:
        detail = f"CUDA {mine[-1]['cuda']}, Python {mine[-1]['python']}"
        return Finding("adapter", f"built for torch {version} ({detail}), in {folder}", True, needed=False, facts=facts)
    versions = sorted({stamp["torch"].split("+")[0] for stamp in stamps})
    others = f"built for torch {', '.join(versions)}" if versions else f"not built yet, in {folder}"
    return Finding("adapter", others, False, "Nothing: the first install() builds it, in about a minute.", needed=False,
                   facts=facts)


def check_cache() -> Finding:
    """Can the adapter be kept?"""
    folder = cache_folder()
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return Finding("cache", str(folder.parent), True, facts={"folder": str(folder.parent)})
    return Finding("cache", f"{nearest} takes no new files", False,
                   "Set DYMEM_CACHE to a folder that this user may write to.", facts={"folder": str(folder.parent)})
