"""Mutants: functions of the product whose source has one text in place of another, so that they follow the product: a text that is
not there any more is an error.
"""

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock


@dataclass(frozen=True)
class SourceEdit:
    """In the source of ``owner.name``, texts become others."""

    owner: Any
    name: str
    changes: tuple[tuple[str, str], ...]


@contextlib.contextmanager
def edited(edit: SourceEdit) -> Iterator[None]:
    """Inside, the function is the one with the other texts."""
    function = inspect.unwrap(getattr(edit.owner, edit.name))
    source = inspect.getsource(function)
    for old, new in edit.changes:
        assert source.count(old) == 1, f"{edit.name} has no {old!r} any more, or more than one"
        source = source.replace(old, new)
    module = inspect.getmodule(function)
    names: dict[str, Any] = {}
    changed = ("if True:\n" if source[0] == " " else "") + source
    exec(compile(changed, f"<mutant of {edit.name}>", "exec"), vars(module), names)
    with mock.patch.object(edit.owner, edit.name, names[edit.name]):
        yield
