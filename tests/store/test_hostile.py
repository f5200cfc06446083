"""Stores whose checksums are right and whose contents are evil: a typed error or a harmless answer, little memory, no crash."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.effort import count, is_campaign
from tests.sanitized import is_sanitized, patience_s
from tests.store import hostile

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm", prefix="penstock-hostile-") as name:
        yield Path(name)


def run(
    group: str, folder: Path, stride: int = 1, *, before: tuple[str, ...] = (), after: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """The lines that the program of tests/store/hostile.py prints for a group; a failure names the case it ended in."""
    command = [*before, sys.executable, "-W", "error", "-m", "tests.store.hostile", group, str(folder), str(stride), *after]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience_s(600))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"ended by {done.returncode} after {lines[-1:]}: {done.stderr[-2000:]}"
    return lines


STRIDE = count(40, 1)


@pytest.fixture(scope="module")
def seen() -> dict[str, list[dict[str, Any]]]:
    """The lines of every group, of forks of one program; in a campaign, where each group is a program, none."""
    if is_campaign():
        return {}
    found: dict[str, list[dict[str, Any]]] = {group: [] for group in hostile.GROUPS}
    with TemporaryDirectory(dir="/dev/shm", prefix="penstock-hostile-") as name:
        groups = iter(found.values())
        lines = next(groups)
        for line in run(",".join(found), Path(name), STRIDE):
            lines.append(line)
            if "peak_kib" in line:  # the last one of a group
                lines = next(groups, [])
    return found


@pytest.mark.parametrize("group", hostile.GROUPS)
def test_hostile_stores_are_refused_by_name_or_read_without_harm(
    group: str, folder: Path, seen: dict[str, list[dict[str, Any]]]
) -> None:
    lines = run(group, folder, STRIDE) if is_campaign() else seen[group]
    results = [line for line in lines if "case" in line]
    assert len(results) == len(list(hostile.GROUPS[group]())[::STRIDE])
    wrong = [f"{line['case']!a}: {line['wrong'][:300]!a}" for line in results if line["wrong"]]
    assert wrong == [], f"{len(wrong)} of {len(results)}"
    assert is_sanitized() or lines[-1]["peak_kib"] < 256 * 1024


def test_there_are_many_hostile_stores_and_each_is_tried_once() -> None:
    names = [(group, case.name) for group, cases in hostile.GROUPS.items() for case in cases()]
    assert len(names) == len(set(names)) > 2_000


def opened(line: str) -> tuple[str, str | None] | None:
    """The path that a traced call asked for, from the directory that it named, and the one it got; None for another call."""
    match = re.search(r'\bopen(?:at)?\((?:[^"<]*<(.*?)>, )?"(.*?)".* = (-?\d+)(?:<(.*)>)?', line)
    if match is None:
        return None
    asked = match[2] if match[2].startswith("/") or match[1] is None else os.path.normpath(f"{match[1]}/{match[2]}")
    return asked, None if match[3] == "-1" else match[4]


def test_nothing_outside_the_store_is_opened(folder: Path) -> None:
    """Names that lead elsewhere, watched from outside: every path opened lies in a store, and so does what it leads to."""
    log = folder / "trace"
    run("name", folder, before=("strace", "-f", "-y", "-qq", "-s", "4096", "-e", "trace=%file", "-o", str(log)), after=("apart",))
    lines = log.read_text(errors="replace").splitlines()
    marker = next(i for i, line in enumerate(lines) if f'"{folder}/marker"' in line)
    calls = [found for line in lines[marker:] if (found := opened(line)) is not None]
    own = re.compile(rf"{re.escape(str(folder))}/store\d+/a\.pen(/|$)|/sys/devices/system/cpu/online$|/proc/(self|\d+)/status$")
    for asked, got in calls:
        assert own.match(asked), asked
        assert ".." not in asked, asked
        assert got is None or own.match(got), got
    assert len(calls) > 300
    assert not any("passwd" in line for line in lines[marker:])


def outcome(folder: Path, case: hostile.Case) -> hostile.Result:
    hostile.write(folder / "store", case)
    return hostile.exercise(folder / "store", case)


def test_the_builder_makes_what_penstock_reads(folder: Path) -> None:
    result = outcome(folder, hostile.Case("as it is", lambda _: None, "right"))
    assert (result.wrong, result.errors) == ("", [])


def test_a_wrong_value_is_not_taken_for_a_right_one(folder: Path) -> None:
    """The checks of this file can fail: a store that reads well where an error is due is reported, and the other way round."""
    assert outcome(folder, hostile.Case("as it is", lambda _: None, "error")).wrong == "no error"
    broken = hostile.Case("cut", lambda spec: spec.part(1).arrays.update(ends=b""), "right")
    assert "errors" in outcome(folder, broken).wrong
    other = hostile.Case("other", lambda spec: hostile.set_record(spec, 1, 2, b"other", 5), "right")
    assert "wrong records" in outcome(folder, other).wrong
