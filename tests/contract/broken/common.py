"""Names that the broken parts share."""

from __future__ import annotations

VECTORISED = "engine vectorised:3"
TYPES = "types of what is kept"
PARTS = "clients with a part of the model"
HISTORY: list[float] = []  # where some keep what they must not
