"""Which adapters are built, against what, and where; is there one for the torch that would be imported?"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile

from dymem._adapter_build import cache_folder, how_long
from dymem.doctor.finding import Finding
from dymem.doctor.software import torch_version
from dymem.errors import InstallError

_MEND = "Set DYMEM_CACHE to a folder that this user may write to."


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
    try:
        folder, version = cache_folder(), str(torch_version()[0])
    except InstallError:
        return Finding("adapter", "not built yet: there is no folder to keep it in", False, _MEND, needed=False)
    stamps = built()
    facts = {"cache": str(folder), "built": stamps}
    mine = [stamp for stamp in stamps if stamp["torch"].split("+")[0] == version.split("+")[0]]
    if mine:
        detail = f"CUDA {mine[-1]['cuda']}, Python {mine[-1]['python']}"
        return Finding("adapter", f"built for torch {version} ({detail}), in {folder}", True, needed=False, facts=facts)
    versions = sorted({stamp["torch"].split("+")[0] for stamp in stamps})
    others = f"built for torch {', '.join(versions)}" if versions else f"not built yet, in {folder}"
    return Finding("adapter", others, False, f"Nothing: the first install() builds it, in {how_long()}.",
                   needed=False, facts=facts)


def check_cache() -> Finding:
    """Can the adapter be kept? A folder is made and taken away again: what may be written to, permissions do not tell."""
    try:
        folder = cache_folder()
    except InstallError:
        return Finding("cache", "this user has no home folder", False, _MEND)
    facts = {"folder": str(folder.parent)}
    nearest = folder
    while not os.path.lexists(nearest) and nearest != nearest.parent:
        nearest = nearest.parent
    try:
        with tempfile.TemporaryDirectory(prefix=".dymem-", dir=nearest):
            return Finding("cache", facts["folder"], True, facts=facts)
    except OSError:
        return Finding("cache", f"{nearest} takes no new files", False, _MEND, facts=facts)
