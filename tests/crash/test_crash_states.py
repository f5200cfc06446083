"""No power cut corrupts a store; and the proof of that would notice if one could."""

from typing import Any

import pytest
from tests.crash.disk import Disk, Materials, Moment
from tests.crash.mutant import MUTANTS
from tests.crash.plan import NAMED
from tests.crash.run import WORKERS, run_all
from tests.crash.trace import parse
from tests.effort import every

SUBSETS = 2
TRIED = every(12, list(MUTANTS))
RECOVERED = every(2, ["rebalance-gc", "update"])
PLANS = every(2, list(NAMED))
MOST = "6"  # of every plan, drawn by lot; all of them: make crash
LEAST_STATES = 75
# A protocol that syncs has few states; many more than this mean that an fsync was lost somewhere.
MOST_STATES_PER_EVENT = 30


@pytest.fixture(scope="module")
def simulated() -> dict[str, dict[str, Any]]:
    """The plans, in two programs."""
    commands = [["tests.crash.simulate", *PLANS[i::WORKERS], "--subsets", str(SUBSETS), "--most", MOST] for i in range(WORKERS)]
    return {result["plan"]: result for result in run_all(commands)}


@pytest.fixture(scope="module")
def mutants() -> dict[str, dict[str, Any]]:
    """Every mutant, in two programs."""
    plans = [f"{MUTANTS[name][1]}:{name}" for name in TRIED]
    commands = [["tests.crash.simulate", *plans[i::WORKERS], "--subsets", str(SUBSETS)] for i in range(WORKERS)]
    return {result["mutant"]: result for result in run_all(commands)}


@pytest.mark.parametrize("plan", PLANS)
def test_every_crash_state_is_a_commit_no_older_than_the_last_acknowledged(simulated: dict[str, dict[str, Any]], plan: str) -> None:
    result = simulated[plan]
    assert result["wrong"] == 0, result["first_wrong"]
    assert result["opened"] > 0


@pytest.mark.parametrize("plan", PLANS)
def test_a_protocol_that_syncs_leaves_few_states(simulated: dict[str, dict[str, Any]], plan: str) -> None:
    assert simulated[plan]["states"] <= MOST_STATES_PER_EVENT * simulated[plan]["events"]


def test_enough_states_were_opened(simulated: dict[str, dict[str, Any]]) -> None:
    assert len(NAMED) >= 20
    assert sum(result["opened"] for result in simulated.values()) >= LEAST_STATES


def test_a_second_crash_during_recovery_changes_nothing() -> None:
    options = ["--subsets", "0", "--most", "1", "--recoveries", "1", "--seed", "1"]
    results = list(run_all([["tests.crash.simulate", *RECOVERED, *options]]))
    assert [result["first_wrong"] for result in results] == [""] * len(RECOVERED)


@pytest.mark.parametrize("mutant", TRIED)
def test_a_broken_protocol_is_caught(mutants: dict[str, dict[str, Any]], mutant: str) -> None:
    assert mutants[mutant]["wrong"] > 0


# The simulator itself, on a trace written by hand

CREATE = '7 openat(AT_FDCWD</>, "/d/f", O_WRONLY|O_CREAT, 0644) = 3</d/f>'
WRITE = '7 pwrite64(3</d/f>, "abcd", 4, 0) = 4'
SYNC_FILE = "7 fsync(3</d/f>) = 0"
SYNC_DIRECTORY = "7 fsync(4</d>) = 0"
LINK = '7 link("/d/f", "/d/g") = 0'
UNLINK = '7 unlink("/d/f") = 0'


def _last(*lines: str) -> tuple[Disk, Moment]:
    disk = Disk("/d")
    return disk, list(disk.replay(parse("\n".join(lines))))[-1]


@pytest.mark.parametrize(
    ("lines", "pending"),
    [
        ((CREATE, WRITE), 2),
        ((CREATE, WRITE, SYNC_FILE), 1),  # the bytes are durable, the name is not
        ((CREATE, WRITE, SYNC_DIRECTORY), 1),  # the name is durable, the bytes are not
        ((CREATE, WRITE, SYNC_FILE, SYNC_DIRECTORY), 0),
        ((CREATE, SYNC_FILE, WRITE), 2),  # an fsync covers only what came before it
        ((CREATE, WRITE, SYNC_FILE, SYNC_DIRECTORY, LINK, UNLINK), 2),
        ((CREATE, WRITE, "7 fsync(3</d/f>) = -1 EIO (Input/output error)"), 2),
        ((CREATE, WRITE, "7 fsync(3</d/f> <unfinished ...>"), 2),  # it never returned
        ((CREATE, "7 fsync(3</d/f> <unfinished ...>", WRITE.replace("7", "8", 1), "7 <... fsync resumed>) = 0"), 2),
    ],
)
def test_an_event_is_pending_until_an_fsync_that_began_after_it_returned(lines: tuple[str, ...], pending: int) -> None:
    assert len(_last(*lines)[1].pending) == pending


@pytest.mark.parametrize(
    ("kept", "torn", "tree"),
    [
        ({0, 1}, None, {"f": b"abcd"}),
        ({0}, None, {"f": b""}),
        ({1}, None, {}),
        ({0, 1}, (1, "half"), {"f": b"ab"}),
        ({0, 1}, (1, "zero"), {"f": bytes(4)}),
        ({0, 1}, (1, "half-zero"), {"f": b"ab\0\0"}),
        ({0, 1, 2}, None, {"f": b"abcd", "g": b"abcd"}),
        ({0, 1, 2, 3}, None, {"g": b"abcd"}),
        ({0, 1, 3}, None, {}),
        ({2}, None, {"g": b""}),
    ],
)
def test_names_and_bytes_reach_the_disk_apart(kept: set[int], torn: tuple[int, str] | None, tree: dict[str, bytes]) -> None:
    disk, moment = _last(CREATE, WRITE, LINK, UNLINK)
    materials = Materials(disk)
    found = materials.tree(moment, (frozenset(kept), torn))
    assert {path: materials.content(digest) for path, digest in found.items() if digest is not None} == tree


@pytest.mark.parametrize(
    "line",
    [
        '7 write(3</d/f>, "abcd", 4) = 4',
        "7 mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, 3</d/f>, 0) = 0x7f0000000000",
        '7 truncate("/d/f", 0) = 0',
        "7 fallocate(3</d/f>, 0, 0, 4096) = 0",
    ],
)
def test_a_change_the_simulator_does_not_know_is_an_error(line: str) -> None:
    with pytest.raises(AssertionError, match=r"written by write|which the protocol does not use"):
        _last(CREATE, line)
