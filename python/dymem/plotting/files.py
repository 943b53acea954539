"""Pictures as PNG or SVG; every failure is one sentence."""

from __future__ import annotations

import io
from pathlib import Path

from dymem.errors import InvalidArgument
from dymem.writing import shown, write_bytes

KINDS = {".png": "png", ".svg": "svg", ".html": "html", ".htm": "html"}


def kind_of(target: Path) -> str:
    """"png", "svg" or "html", by the name."""
    kind = KINDS.get(target.suffix.lower())
    if kind is None:
        raise InvalidArgument(f"{shown(target)} names no kind of picture; end it in .png, .svg or .html.")
    return kind


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
