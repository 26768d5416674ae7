"""Show the examples of docstrings as code: mkdocs takes `>>>` for a quotation."""

from __future__ import annotations

import re
from typing import Any

import griffe

# the lines of an example: from a prompt to the next empty line
EXAMPLE = re.compile(r"^( *)>>> .*(?:\n.*\S.*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts the examples of every docstring into fences."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(
                lambda found: f"\n```pycon\n{found[0]}\n```", obj.docstring.value
            )
