"""An extension of griffe: the docstrings of penstock, which are plain text, as Markdown."""

import re
from typing import Any

from griffe import Docstring, Extension, Object

ROLE = re.compile(r":(?:class|func|meth|mod):`~?([^`]+)`")
LITERAL = re.compile(r"(?m)::$")


def as_markdown(text: str) -> str:
    """Examples as fenced blocks, references to other names as code, and no double colons before indented blocks."""
    text = ROLE.sub(lambda match: f"`{match[1].removeprefix('penstock.')}`", text)
    text = LITERAL.sub(":", text)
    made, inside = [], False
    for line in text.splitlines():
        if line.startswith(">>> ") and not inside:
            made.append("```pycon")
            inside = True
        elif inside and not line:
            made.append("```")
            inside = False
        made.append(line)
    return "\n".join([*made, "```"] if inside else made)


class DocstringsAsMarkdown(Extension):
    """Rewrites every docstring that is loaded."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Called by griffe for every module, class, function and attribute."""
        if isinstance(obj.docstring, Docstring):
            obj.docstring.value = as_markdown(obj.docstring.value)
