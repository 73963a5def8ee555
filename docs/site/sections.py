"""An extension of the API reference (`mkdocs.yml`): sections of docstrings by griffe's names."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

NAMES = {"Example": "Examples", "Options": "Other Parameters"}
HEADING = re.compile(rf"^({'|'.join(NAMES)}):$", flags=re.MULTILINE)


class Sections(Extension):
    """Options of rules and methods are listed like arguments, an example is shown as code."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Rename the sections of one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = HEADING.sub(lambda m: f"{NAMES[m[1]]}:", obj.docstring.value)
