"""Mutants: the protocol with one thing broken. Each must be found, by the scenario named, within the schedules of a test."""

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.interleave.world import forget
from tests.mutant import SourceEdit, edited

from penstock.store import maintenance
from penstock.store.bucket import ObjectStorage
from penstock.store.writer import Writer


class Mutant(SourceEdit):
    """An edit, and the scenario that shows it."""

    def __init__(self, owner: Any, name: str, scenario: str, changes: tuple[tuple[str, str], ...]) -> None:
        super().__init__(owner, name, changes)
        object.__setattr__(self, "scenario", scenario)

    scenario: str


MUTANTS = {
    "publish-overwrites": Mutant(
        ObjectStorage,
        "_put_new",
        "append-append",
        (("return self._objects.put_new(self._key(final), data)", "self._objects.put(self._key(final), data); return True"),),
    ),
    "refusal-is-success": Mutant(
        ObjectStorage, "publish", "append-append", (("if self._put_new(final, data):", "if self._put_new(final, data) or True:"),)
    ),
    "refusal-is-conflict": Mutant(
        ObjectStorage,
        "publish",
        "append-change",
        (
            (
                "if self._put_new(final, data):\n                    return",
                "if self._put_new(final, data):\n                    return\n                raise ConflictError(final)",
            ),
        ),
    ),
    "lost-answer-is-success": Mutant(ObjectStorage, "publish", "append-append", (("pass\n", "return\n"),)),
    "lost-answer-is-conflict": Mutant(ObjectStorage, "publish", "append-append", (("pass\n", "raise ConflictError(final)\n"),)),
    "lost-answer-is-an-error": Mutant(
        ObjectStorage,
        "publish",
        "append-append",
        (
            (
                "except OutcomeUnknownError:\n                pass",
                "except OutcomeUnknownError as error:\n                raise StoreError(final) from error",
            ),
        ),
    ),
    "any-manifest-is-mine": Mutant(ObjectStorage, "_is_mine", "append-append", (("if found == data:", "if found:"),)),
    "no-answer-to-the-reading-is-absent": Mutant(
        ObjectStorage,
        "_is_mine",
        "append-append",
        (("raise self._unknown(final) from error", "raise ConflictError(final) from error"),),
    ),
    "successor-may-be-there": Mutant(
        ObjectStorage, "is_current", "idle-twice-gc-hours", (("if self._exists(generation + 1):", "if False:"),)
    ),
    "base-is-looked-at-before-its-successor": Mutant(
        ObjectStorage,
        "is_current",
        "idle-twice-gc-hours",
        (
            ("        if self._exists(generation + 1):\n            return False\n", ""),
            ("return hashlib", "return not self._exists(generation + 1) and hashlib"),
        ),
    ),
    "base-may-be-gone": Mutant(
        ObjectStorage,
        "is_current",
        "idle-twice-gc-hours",
        (("except MissingError:\n            return False", "except MissingError:\n            return True"),),
    ),
    "rebase-keeps-numbers-of-chunks": Mutant(Writer, "_rebase", "append-append", (("self._chunks.renumber(shift)", "pass"),)),
    "rebase-keeps-numbers-in-segments": Mutant(Writer, "_rebase", "append-append", (("segment.chunk + shift", "segment.chunk"),)),
    "rebase-forgets-the-others": Mutant(
        Writer,
        "_rebase",
        "append-append",
        (("RowMap(newest.length, newest.segments, redirects)", "RowMap(base.length, base.segments, redirects)"),),
    ),
    "rebase-keeps-redirects": Mutant(
        Writer,
        "_rebase",
        "append-change",
        (("if newest.redirects == base.redirects else load_redirects(self._files, newest)", ""),),
    ),
    "changes-are-rebased": Mutant(Writer, "_publish_or_rebase", "append-change", (("not self._only_appends", "False"),)),
    "files-of-an-interrupted-commit-are-discarded": Mutant(
        Writer, "_publish", "append-append", (("made, self._chunks.made = self._chunks.made, []", "made = self._chunks.made"),)
    ),
    "manifest-before-redirects": Mutant(
        Writer, "_write_redirects", "change-delete", (("self._files.write_new(name, [(0, data)])", "self._late = name, data"),)
    ),
    "gc-takes-young-files": Mutant(maintenance, "_collect", "append-gc", (("return now - file.arrived >= keep_s", "return True"),)),
    "gc-takes-young-generations": Mutant(maintenance, "_collect", "twice-gc-hours", (("*young, ", ""),)),
    "gc-takes-the-newest-first": Mutant(maintenance, "_collect", "gc-gc", (("for file in old:", "for file in old[::-1]:"),)),
    "gc-takes-data-first": Mutant(
        maintenance,
        "_collect",
        "append-gc",
        (
            (
                "storage.settle((MANIFEST_DIRECTORY,), is_new=False)\n        for file in old:",
                "storage.each(lambda file: storage.remove(file.name), loose)\n        for file in old:",
            ),
        ),
    ),
    "gc-trusts-listings": Mutant(
        maintenance,
        "_collect",
        "append-gc-hours-stale",
        (
            ("unlisted = storage.unlisted(sorted(there))", "unlisted = set()"),
            ("named = _named(storage, [number for number", "named = _named(storage, [number for number in () if number"),
        ),
    ),
    "gc-keeps-one-generation-less": Mutant(maintenance, "_collect", "append-gc", (("[-keep:]", "[-keep:][1:]"),)),
    "gc-ignores-redirects": Mutant(
        maintenance, "_named", "append-gc", (("named |= {r.file for r in manifest.redirects}", "pass"),)
    ),
}


@contextlib.contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    """Inside, the product has this fault."""
    with edited(mutant):
        try:
            forget()
            yield
        finally:
            forget()
