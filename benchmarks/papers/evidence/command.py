"""A script that runs what is missing, as a command: one line about what went wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable

from fedloom.errors import FedloomError

from .lines import made_by


def as_command(main: Callable[[], None]) -> None:
    """Call main. Raises SystemExit: 1 with the reason, 130 after Ctrl-C."""
    made_by()  # of the code as it is now
    try:
        main()
    except FedloomError as error:
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:
        print("interrupted: the same command goes on", file=sys.stderr)
        raise SystemExit(130) from None
