"""Writes pictures: whole or not at all, beside the target and then renamed; every failure is one sentence."""

from __future__ import annotations

import io
import os
from pathlib import Path

from dymem.errors import InvalidArgument

KINDS = {".png": "png", ".svg": "svg", ".html": "html", ".htm": "html"}


def kind_of(target: Path) -> str:
    """"png", "svg" or "html", by the name."""
    kind = KINDS.get(target.suffix.lower())
    if kind is None:
        raise InvalidArgument(f"{shown(target)} names no kind of picture; end it in .png, .svg or .html.")
    return kind


def shown(path: Path) -> str:
    """A path for a sentence, also where its bytes are no UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def save_figure(figure, target: str | Path, dpi: int = 130) -> None:
    """As PNG or SVG, by the suffix of `target`."""
    target = Path(target)
    kind = kind_of(target)
    write_bytes(target, figure_bytes(figure, "png" if kind == "html" else kind, dpi))


def figure_bytes(figure, kind: str, dpi: int = 130) -> bytes:
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}  # same input, same bytes
    figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    return buffer.getvalue()


def write_bytes(target: Path, data: bytes) -> None:
    """InvalidArgument if it cannot be written; then nothing is left of it."""
    part = target.absolute().parent / f".dymem-{os.getpid()}.part"
    try:
        if os.path.lexists(target) and (target.is_symlink() or not target.is_file()):
            target.write_bytes(data)  # a link, pipe or device stays what it is
            return
        try:
            part.write_bytes(data)
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{shown(target)} cannot be written: {getattr(error, 'strerror', None) or error}.") from None
