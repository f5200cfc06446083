"""Ban files: records that are not to come, in a file that ``penstock blame`` writes and ``without`` reads.

JSON: ``{"kind": "penstock bans", "version": 1, "data": fingerprint, "samples": digests by name, "bans": [...]}``. A ban has the
names of its stream in mixtures (``[]`` without one), the step from which on it holds, and ids. The data is compared before ids are
used.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.argument import shown, whole_number
from penstock.errors import CorruptError, StateMismatchError
from penstock.records import SAMPLINGS, is_same_data
from penstock.system import is_there, read_note, write_note

__all__ = ["Ban", "BanFile", "with_bans"]

KIND = "penstock bans"
VERSION = 1
MAX_BYTES = 1 << 30

Banned = TypeVar("Banned", bound=Any)


@dataclass(frozen=True)
class Ban:
    """Records of a stream that do not come from a step on."""

    stream: tuple[str, ...]
    from_step: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class BanFile:
    """Bans of records of some data."""

    data: str
    samples: Mapping[str, str]
    bans: tuple[Ban, ...]

    @classmethod
    def of(cls, stream: Any, bans: Sequence[Ban]) -> "BanFile":
        """Bans of records of a stream."""
        digests = {sampling.name: stream.sample_digest(sampling) for sampling in SAMPLINGS}
        return cls(stream.data_fingerprint, {name: one for name, one in digests.items() if one is not None}, tuple(bans))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, all of it or nothing. StateMismatchError if there is one of other data; bans of the same data are
        kept.
        """
        bans = self.bans
        if is_there(path):
            before = BanFile.load(path)
            if (before.data, dict(before.samples)) != (self.data, dict(self.samples)):
                raise StateMismatchError(f"{path}: the file has bans of other data: choose another name")
            bans = (*before.bans, *(ban for ban in bans if ban not in before.bans))
        told = [{"stream": list(ban.stream), "from_step": ban.from_step, "ids": list(ban.ids)} for ban in bans]
        write_note(path, KIND, VERSION, {"data": self.data, "samples": dict(self.samples), "bans": told})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "BanFile":
        """FormatError if the file is something else, CorruptError if it is damaged."""
        found = read_note(path, KIND, VERSION, MAX_BYTES)
        try:
            bans = tuple(_parsed(one) for one in found["bans"])
            data, samples = found["data"], found["samples"]
            if not isinstance(data, str) or not all(isinstance(one, str) for one in samples.values()):
                raise TypeError("data without digests")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptError(f"{path}: damaged file of bans: {type(error).__name__}: {shown(str(error))}") from error
        return cls(data, samples, bans)


def _parsed(ban: Any) -> Ban:
    names, ids = ban["stream"], ban["ids"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or not isinstance(ids, list):
        raise TypeError(f"expected names and ids, found {shown(ban)}")
    numbers = tuple(whole_number("id", one) for one in ids)
    return Ban(tuple(names), whole_number("from_step", ban["from_step"]), numbers)


def with_bans(stream: Banned, path: str | os.PathLike[str], from_step: int) -> Banned:
    """A stream without the records that a file names. StateMismatchError if they are of other data."""
    if from_step:
        raise ValueError("a file of bans has the steps in it: leave from_step out")
    file = BanFile.load(path)
    if not is_same_data(file.samples, file.data, stream.sample_digest, lambda: stream.data_fingerprint):
        raise StateMismatchError(f"{path}: the bans are of other data than this stream: their ids mean other records")
    for ban in file.bans:
        if ban.ids:
            ids: Any = list(ban.ids)
            for name in reversed(ban.stream):
                ids = {name: ids}
            stream = stream.without(ids, from_step=ban.from_step)
    return stream
