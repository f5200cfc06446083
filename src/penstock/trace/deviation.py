"""Deviation: the first step at which two runs were given something else, and why."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.argument import shown
from penstock.records import is_same_data
from penstock.trace.certificate import Certificate, CertifiedSteps

__all__ = ["Comparison", "Reason", "compare"]

MOST_RECORDS = 20
"""Records that a reason names."""


@dataclass(frozen=True)
class Reason:
    """Something that differs: what kind of thing (such as "seed", "batch size", "record"), and the two values in words."""

    kind: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.a} in A, {self.b} in B"


@dataclass(frozen=True)
class Comparison:
    """Two certificates. ``step`` is the first that differs; None if none does, or if it is not known which one."""

    is_same: bool
    step: int | None
    reasons: tuple[Reason, ...]
    common_steps: int


def compare(a: Certificate, b: Certificate) -> Comparison:
    """What differs, the causes of the first step that does first."""
    step = _first_step(a, b)
    is_same = step is None and a.chain == b.chain
    if is_same:
        return Comparison(True, None, (), len(a.steps))
    reasons = list(_reasons(a, b, step))
    if not reasons:
        reasons = [Reason("batch", "other samples", "with the same plan: the certificates are of different versions of penstock")]
    return Comparison(False, step, tuple(reasons), len(np.intersect1d(a.steps, b.steps)))


def _first_step(a: Certificate, b: Certificate) -> int | None:
    """The first step that only one has, or that has other samples or contents."""
    common, in_a, in_b = np.intersect1d(a.steps, b.steps, return_indices=True)
    differs = (a.digests[in_a] != b.digests[in_b]).any(axis=1)
    if a.contents is not None and b.contents is not None:
        differs |= (a.contents[in_a] != b.contents[in_b]).any(axis=1)
    alone = np.setxor1d(a.steps, b.steps)
    found = [int(steps[0]) for steps in (common[differs], alone) if len(steps)]
    return min(found, default=None)


def _reasons(a: Certificate, b: Certificate, step: int | None) -> Iterator[Reason]:
    if step is not None:
        yield from _delivery(a, b, step)
    at = step if step is not None else int(a.steps[0])
    one, two = _section(a, at), _section(b, at)
    yield from _sections(one, two)
    yield from _data(a, b, one, two)
    later = max((s.first for s in (*a.sections, *b.sections)), default=0)
    if later > at and step is None:  # equal so far, and they go on with other plans
        yield from _sections(_section(a, later), _section(b, later))


def _section(of: Certificate, step: int) -> CertifiedSteps:
    """The section of a step, or the last one before it."""
    before = [section for section in of.sections if section.first <= step]
    return of.section(step) or (before[-1] if before else of.sections[0])


def _delivery(a: Certificate, b: Certificate, step: int) -> Iterator[Reason]:
    """What was not delivered: a step, or the part of a rank."""
    missing = {name: {s: (ranks, world) for s, ranks, world in one.partial} for name, one in (("a", a), ("b", b))}
    told = {name: _ranks(*found[step]) if step in found else "all ranks" for name, found in missing.items()}
    has = {name: step in one.steps for name, one in (("a", a), ("b", b))}
    if has["a"] and has["b"]:
        if told["a"] != told["b"]:
            yield Reason("rank lost", told["a"], told["b"])
        return
    name, other = (a, "A") if not has["a"] else (b, "B")
    words = {"a": "delivered", "b": "delivered"}
    end = int(name.steps[-1])
    gap = name.steps[np.searchsorted(name.steps, step)] if step < end else None
    words["a" if other == "A" else "b"] = (
        (f"the run ends behind step {end}" if gap is None else f"skipped, the next step is {int(gap)}")
        if step > int(name.steps[0])
        else f"the run begins at step {int(name.steps[0])}"
    )
    kind = "end of the run" if gap is None else "step skipped" if step > int(name.steps[0]) else "begin of the run"
    yield Reason(kind, words["a"], words["b"])


def _ranks(missing: tuple[int, ...], world: int) -> str:
    return f"nothing of rank {', '.join(map(str, missing))} of {world}"


def _sections(one: CertifiedSteps, two: CertifiedSteps) -> Iterator[Reason]:
    if one.order_version != two.order_version:
        yield Reason("order version", str(one.order_version), str(two.order_version))
    if one.batch_size != two.batch_size:
        yield Reason("batch size", str(one.batch_size), str(two.batch_size))
    if one.tail != two.tail:
        yield Reason("tail", one.tail, two.tail)
    yield from _plans(one.plan, two.plan)


# Plans: texts such as Shuffle(n=1000, seed=7), by key


def _plans(one: Mapping[str, str], two: Mapping[str, str]) -> Iterator[Reason]:
    bans = _bans(one), _bans(two)
    for key in dict.fromkeys([*one, *two]):
        a, b = one.get(key, "not there"), two.get(key, "not there")
        if a == b or _is_ban(key):
            continue
        yield from _parts(key, a, b)
    if bans[0] != bans[1]:
        yield Reason("bans", "; ".join(bans[0]) or "none", "; ".join(bans[1]) or "none")


def _is_ban(key: str) -> bool:
    return re.search(r"(^|: |document )ban \d+$", key) is not None


def _bans(plan: Mapping[str, str]) -> list[str]:
    return [f"{key}: {shown(value)[1:-1]}" for key, value in plan.items() if _is_ban(key)]


def _parts(key: str, a: str, b: str) -> Iterator[Reason]:
    """The arguments that differ, where both texts are calls of the same thing."""
    stream, colon, name = key.rpartition(": ")
    of = f" of {stream}" if colon else ""
    calls = _call(a), _call(b)
    if calls[0] is not None and calls[1] is not None and calls[0][0] == calls[1][0]:
        left, right = calls[0][1], calls[1][1]
        for argument in dict.fromkeys([*left, *right]):
            if left.get(argument) != right.get(argument):
                yield Reason(f"{_named(name, argument)}{of}", _short(left.get(argument)), _short(right.get(argument)))
        return
    yield Reason(f"{name}{of}", _short(a), _short(b))


def _named(name: str, argument: str) -> str:
    return "records" if argument == "n" else argument if name == "order" else f"{name} {argument}"


def _short(value: Any) -> str:
    return "not there" if value is None else shown(str(value))[1:-1]


def _call(text: str) -> tuple[str, dict[str, str]] | None:
    """The name and the arguments of a repr such as Shuffle(n=10, seed=7); None if it is none."""
    found = re.fullmatch(r"(\w+)\((.*)\)", text, re.DOTALL)
    if found is None:
        return None
    arguments = {}
    for number, part in enumerate(_split(found[2])):
        name, equals, value = part.partition("=")
        arguments[name.strip() if equals and name.strip().isidentifier() else f"argument {number}"] = value if equals else part
    return found[1], arguments


def _split(text: str) -> Iterator[str]:
    """The arguments of a call: at commas that are in no brackets."""
    depth, begin = 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            yield text[begin:place].strip()
            begin = place + 1
    if text[begin:].strip():
        yield text[begin:].strip()


# Data


def _data(a: Certificate, b: Certificate, one: CertifiedSteps, two: CertifiedSteps) -> Iterator[Reason]:
    is_same = is_same_data(one.samples, one.data, lambda sampling: two.samples.get(sampling.name), lambda: two.data)
    if a.records and b.records:
        found = list(_records(a, b))
        yield from found
        if found:
            return
    if not is_same:
        note = "" if a.records and b.records else " (certify both with digests of records to see which)"
        yield Reason("data", _known(one), f"{_known(two)}{note}")


def _known(section: CertifiedSteps) -> str:
    found = section.samples.get("dense") or section.samples.get("few") or section.data
    return shown(found[:16])[1:-1]


def _records(a: Certificate, b: Certificate) -> Iterator[Reason]:
    for name in dict.fromkeys([*a.records, *b.records]):
        of = f" of {name}" if name else ""
        if name not in a.records or name not in b.records:
            there, gone = "there", "not there"
            yield Reason(f"stream {name}", *((there, gone) if name in a.records else (gone, there)))
            continue
        left, right = a.records[name], b.records[name]
        if len(left) != len(right):
            yield Reason(f"records{of}", str(len(left)), str(len(right)))
        common = min(len(left), len(right))
        changed = np.flatnonzero(left[:common] != right[:common])
        if len(changed):
            ids = ", ".join(map(str, changed[:MOST_RECORDS].tolist()))
            more = f" and {len(changed) - MOST_RECORDS} more" if len(changed) > MOST_RECORDS else ""
            yield Reason(f"record{of}", f"{ids}{more}", "changed")
