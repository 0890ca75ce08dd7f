"""A matrix of palette indices as a PNG file, a byte a pixel, without an imaging library."""

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def png(indices: NDArray[np.uint8], palette: NDArray[Any], *, transparent: int | None = None) -> bytes:
    """The file of a picture whose pixel (i, j) has the colour palette[indices[i, j]].

    indices: uint8 [h, w]; palette: red, green, blue from 0 to 255, [256, 3]; transparent: an index that shows nothing.
    """
    h, w = indices.shape
    rows = np.zeros((h, w + 1), np.uint8)  # a row begins with its filter, here 0: none
    rows[:, 1:] = indices
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 3, 0, 0, 0)),
        (b"PLTE", palette.astype(np.uint8).tobytes()),
        *([] if transparent is None else [(b"tRNS", bytes([255] * transparent + [0]))]),
        (b"IDAT", zlib.compress(rows.tobytes())),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
