"""Image files (JPEG, PNG, ...) through pillow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedloom.core.extras import need
from fedloom.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]


def pillow() -> Any:
    """The module PIL.Image. Raises DataError if it is not installed."""
    return need("PIL.Image", "a picture file", "images", DataError)


def open_picture(
    path: Path,
    size: tuple[int, int] | None = None,
    resize: bool = False,
    grey: bool | None = False,
) -> Array:
    """A picture as (3, height, width) uint8, or (1, height, width) if grey; None: as it is.

    size: (height, width) that it must have, or that it is brought to if resize. Raises DataError
    naming the file.
    """
    image = pillow()
    try:
        # opened here: given a name, pillow only closes the file of formats that let it
        with path.open("rb") as raw, image.open(raw) as file:
            picture = _of_8_bits(file, path)
            if resize and size is not None:
                picture = file.resize((size[1], size[0]))
            return as_array(picture, size, path, grey)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; get the pictures again") from error
    except (OSError, SyntaxError, ValueError, MemoryError, image.DecompressionBombError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{path} is no whole picture ({(str(error) or 'too large').splitlines()[0]}); get it "
            "again"
        ) from error


def as_array(
    picture: Any, size: tuple[int, int] | None, where: object, grey: bool | None = False
) -> Array:
    """A pillow picture as (3 or 1, height, width) uint8; where: what an error names."""
    _of_8_bits(picture, where)
    if grey is None:
        grey = picture.mode in ("1", "L", "LA", "La")
    array = np.asarray(picture.convert("L" if grey else "RGB"), dtype=np.uint8)
    if size is not None and array.shape[:2] != size:
        raise DataError(
            f"{where} has {array.shape[0]} x {array.shape[1]} pixels, expected {size[0]} x "
            f"{size[1]}; all pictures must be of one size"
        )
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _of_8_bits(picture: Any, where: object) -> Any:
    """The picture. Raises DataError for one of more bits, whose values pillow would cut off at 255,
    and for one of several pages, of which only the first would be read.
    """
    pages = getattr(picture, "n_frames", 1) if picture.format == "TIFF" else 1
    if picture.mode[0] not in "IF" and pages == 1:
        return picture
    bits = 16 if picture.mode.startswith("I;16") else 32
    wrong = f"{bits} bits a pixel (mode {picture.mode})" if pages == 1 else f"{pages} pages"
    raise DataError(
        f"{where} has {wrong}, and pictures have one page of 8 bits here; save it so, or keep the "
        "values: give float32 arrays, as inputs in data.npz or to from_clients()"
    )
