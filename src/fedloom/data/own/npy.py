"""Arrays of .npy and .npz files of a user: numbers only, for a pickle is never loaded."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np


def read_arrays(path: str | PathLike[str]) -> dict[str, np.ndarray[Any, Any]]:
    """{name: array} of a .npz file, or of a .npy file by its own name. Raises ValueError of one
    line, for a missing file too.
    """
    arrays, name = {}, ""
    try:
        with open(path, "rb") as file:  # given a name, numpy leaves a damaged file open
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                return {Path(path).stem: content}
            for name in content.files:
                if not isinstance(array := content[name], np.ndarray):
                    raise ValueError("it is no array")
                arrays[name] = array
    except Exception as error:  # of a damaged file it may be any
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        where = f"array '{name[:60]}': " if name else ""
        raise ValueError(f"{where}{reason.splitlines()[0][:300]}") from None
    return arrays
