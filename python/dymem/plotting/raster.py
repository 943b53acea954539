"""Address over time as an array of pixels: fast however many blocks there are, since a block is one slice.

A pixel is a class (colours.py). Columns are exact instants (axis.py); rows are device memory, row 0 at address 0. Edges
are rounded to the nearest row, so neighbours meet without a seam, and what is thinner than half a row may vanish.
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
    block = layout.piece_block
    born, freed, ended = layout.born[block], layout.freed[block], layout.ended[block]
    _paint(picture, axis, layout.piece_low, layout.piece_high, born, freed,
           (FIRST + classes.of_block[block]).astype(np.uint8), top)
    late = ended > freed
    _paint(picture, axis, layout.piece_low[late], layout.piece_high[late], freed[late], ended[late],
           np.full(int(late.sum()), PENDING, np.uint8), top)
    picture[:, past] = NOTHING
    return picture


def _paint(picture, axis: Axis, low, high, born, ended, value, top: int) -> None:
    import numpy as np

    scale = picture.shape[0] / top
    row0, row1 = np.rint(low * scale).astype(np.int64), np.rint(high * scale).astype(np.int64)
    column0, column1 = axis.column(born), axis.column(ended)
    seen = np.flatnonzero((row0 < row1) & (column0 < column1))
    for r0, r1, c0, c1, v in zip(row0[seen].tolist(), row1[seen].tolist(), column0[seen].tolist(),
                                 column1[seen].tolist(), value[seen].tolist()):
        picture[r0:r1, c0:c1] = v
