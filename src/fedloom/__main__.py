"""`python -m fedloom`: the command line."""

from __future__ import annotations

from fedloom.cli.__main__ import main

if __name__ == "__main__":
    main()
