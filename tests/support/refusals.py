"""How a test says that something is refused."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from fedloom.errors import FedloomError


def refused(
    call: Callable[[], object], *says: object, kind: type[FedloomError] = FedloomError
) -> str:
    """Assert that an error of one line says all of these, in which ` ... ` stands for any words."""
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for part in says:
        assert re.search(re.escape(str(part)).replace(r"\ \.\.\.\ ", ".*"), message), message
    return message
