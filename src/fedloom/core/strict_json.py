"""JSON that another place sent: checked strictly, and wrong in one line."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, ValidationError

from ..errors import WireError
from .parsing import one_line

M = TypeVar("M", bound=BaseModel)
# no control characters: names stand in logs, and end there in a terminal
PLAIN = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"
Name = Annotated[str, Field(max_length=64, pattern=PLAIN)]
# what a site says of itself, and others compute with
Examples = Annotated[int, Field(ge=0, le=10**9)]


def first_of(error: ValidationError) -> tuple[str, str]:
    """Where the first mistake is, and what it is, on one line each."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = one_line(".".join(str(part)[:40] for part in first["loc"]), 100)
    return where or "the whole", one_line(first["msg"], 200)


def from_json(kind: type[M], raw: bytes, name: str) -> M:
    """What another place sent as JSON. name: of it in errors. Raises WireError."""
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        where, message = first_of(error)
        raise WireError(f"the {name} is wrong at {where}: {message}") from None
