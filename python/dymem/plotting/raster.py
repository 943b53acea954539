"""Address over time as an array of pixels: fast however many blocks there are, since a block is one slice.

A pixel is a class (colours.py). Columns are exact instants (axis.py); rows are device memory, row 0 at address 0. Edges
are rounded to the nearest row, so neighbours meet without a seam. A block of which no row would be left has one where
memory is free else, and one only, at its largest piece. Over other blocks it has none: of a recording with thousands of
small ones, these would take a quarter of the area of the large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dymem.plotting.colours import FIRST, IDLE, NOTHING, PENDING

if TYPE_CHECKING:
    import numpy as np

    from dymem.plotting.axis import Axis
    from dymem.plotting.colours import Classes
    from dymem.plotting.layout import Layout


def rasterise(layout: Layout, axis: Axis, classes: Classes, rows: int, top: int) -> np.ndarray:
    """uint8, rows × columns: NOTHING, IDLE (held of the device for no block), PENDING, or FIRST + a block's class."""
    import numpy as np

    picture = np.full((rows, len(axis.instants)), NOTHING, np.uint8)
    past = axis.instants >= len(layout)
    _paint(picture, axis, layout.extent_low, layout.extent_high, layout.extent_born, layout.extent_ended,
           np.full(len(layout.extent_low), IDLE, np.uint8), top)
    thin = _hairlines(layout, rows, top)  # before the others, which cover them
    low, high, block = layout.piece_low[thin], layout.piece_high[thin], layout.piece_block[thin]
    _paint(picture, axis, low, high, layout.freed[block], layout.ended[block], np.full(len(block), PENDING, np.uint8), top,
           least=1)
    _paint(picture, axis, low, high, layout.born[block], layout.freed[block],
           (FIRST + classes.of_block[block]).astype(np.uint8), top, least=1)
    block = layout.piece_block
    born, freed, ended = layout.born[block], layout.freed[block], layout.ended[block]
    _paint(picture, axis, layout.piece_low, layout.piece_high, born, freed,
           (FIRST + classes.of_block[block]).astype(np.uint8), top)
    late = ended > freed
    _paint(picture, axis, layout.piece_low[late], layout.piece_high[late], freed[late], ended[late],
           np.full(int(late.sum()), PENDING, np.uint8), top)
    picture[:, past] = NOTHING
    return picture


def _rows(low, high, rows: int, top: int):
    import numpy as np

    return tuple(np.rint(edge * (rows / top)).astype(np.int64) for edge in (low, high))


def _hairlines(layout: Layout, rows: int, top: int):
    """The pieces, by index, that stand for blocks all of whose pieces are rounded away: the largest of each."""
    import numpy as np

    row0, row1 = _rows(layout.piece_low, layout.piece_high, rows, top)
    drawn = np.zeros(len(layout.born), bool)
    drawn[layout.piece_block[row0 < row1]] = True
    thin = np.flatnonzero(~drawn[layout.piece_block] & (layout.piece_low < layout.piece_high))
    largest = thin[np.argsort(layout.piece_low[thin] - layout.piece_high[thin], kind="stable")]
    return largest[np.unique(layout.piece_block[largest], return_index=True)[1]]


def _paint(picture, axis: Axis, low, high, born, ended, value, top: int, least: int = 0) -> None:
    """`least`: rows that each has, whatever its size."""
    import numpy as np

    row0, row1 = _rows(low, high, picture.shape[0], top)
    row0 = np.minimum(row0, picture.shape[0] - least)
    row1 = np.maximum(row1, row0 + least)
    column0, column1 = axis.column(born), axis.column(ended)
    seen = np.flatnonzero((row0 < row1) & (column0 < column1))
    for r0, r1, c0, c1, v in zip(row0[seen].tolist(), row1[seen].tolist(), column0[seen].tolist(),
                                 column1[seen].tolist(), value[seen].tolist()):
        picture[r0:r1, c0:c1] = v
