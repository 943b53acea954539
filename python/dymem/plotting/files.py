"""Pictures as PNG, SVG or PDF, written whole or not at all; every failure is one sentence."""

from __future__ import annotations

import io
from pathlib import Path

from dymem.errors import InvalidArgument
from dymem.writing import shown, write_bytes

KINDS = {".png": "png", ".svg": "svg", ".html": "html", ".htm": "html"}  # of `dymem plot`
FIGURES = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
_UNDATED = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}  # same input, same bytes


def kind_of(target: Path) -> str:
    """"png", "svg" or "html", by the name."""
    kind = KINDS.get(target.suffix.lower())
    if kind is None:
        raise InvalidArgument(f"{shown(target)} names no kind of picture; end it in .png, .svg or .html.")
    return kind


def save_figure(figure, target: str | Path, dpi: int = 130) -> None:
    """As PNG, SVG or PDF, by the suffix of `target`.

    Drawn in memory first: matplotlib would leave the half of a file, and a traceback, where a disk is full."""
    target = Path(target)
    kind = FIGURES.get(target.suffix.lower())
    if kind is None:
        raise InvalidArgument(f"{shown(target)} is no name for a picture; write .png, .svg or .pdf.")
    write_bytes(target, figure_bytes(figure, kind, dpi))


def figure_bytes(figure, kind: str, dpi: int = 130) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=dpi, metadata=_UNDATED[kind])
    return buffer.getvalue()
