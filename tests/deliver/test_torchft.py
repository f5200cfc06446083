"""Batches for replicas that come and go, compared with a run of one that nobody disturbs; the real torchft: ``make trainers``."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as pen
from penstock.deliver.torchft import ReplicaBatches
from penstock.errors import StateMismatchError

BATCH, MOST, RECORDS = 12, 4, 50


class Quorum:
    """What a manager says in a step."""

    def __init__(self) -> None:
        self.step, self.replicas = 0, 1
        self.rank: int | None = 0

    def current_step(self) -> int:
        return self.step

    def participating_rank(self) -> int | None:
        return self.rank

    def num_participants(self) -> int:
        return self.replicas


def make(shard: pen.Shard) -> pen.Loader:
    return pen.Loader(pen.open({"x": np.arange(RECORDS)}).shuffle(seed=7), BATCH, shard=shard, tail="wrap", threads=0)


@given(st.lists(st.tuples(st.sets(st.integers(0, MOST - 1), min_size=1), st.booleans()), min_size=1, max_size=12))
def test_committed_steps_are_those_of_a_run_that_nobody_disturbs(steps: list[tuple[set[int], bool]]) -> None:
    """In every step other replicas take part, and it is committed or comes again."""
    quorums = [Quorum() for _ in range(MOST)]
    replicas = [ReplicaBatches(make, quorum, most=MOST) for quorum in quorums]
    whole, committed = make(pen.Shard()), 0
    for present, commits in steps:
        parts = []
        for rank, replica in enumerate(sorted(present)):
            quorums[replica].step, quorums[replica].rank, quorums[replica].replicas = committed, rank, len(present)
            parts.append(next(replicas[replica])["x"].numpy())
            assert replicas[replica].state_dict() == whole.state_at(committed)
        assert sorted(np.concatenate(parts)) == sorted(whole.batch(committed)["x"])
        assert len({len(part) for part in parts}) == 1
        committed += commits
    for replica in replicas:
        replica.close()


def test_processes_of_a_replica_group_divide_its_part() -> None:
    quorums = [Quorum() for _ in range(4)]
    parts = []
    for place, quorum in enumerate(quorums):  # two groups of two processes
        quorum.rank, quorum.replicas, quorum.step = place // 2, 2, 3
        parts.append(next(ReplicaBatches(make, quorum, most=3, group=pen.Shard(place % 2, 2)))["x"].numpy())
    assert sorted(np.concatenate(parts)) == sorted(make(pen.Shard()).batch(3)["x"])


def test_what_cannot_work_is_refused_before_a_replica_is_lost() -> None:
    with pytest.raises(ValueError, match="12 cannot be divided among 5 ranks"):
        ReplicaBatches(make, Quorum(), most=5)
    quorum = Quorum()
    batches = ReplicaBatches(make, quorum, most=2)
    for replicas in (0, 3):
        quorum.replicas = replicas
        with pytest.raises(RuntimeError, match=f"expected a quorum of 1 to 2 replicas, found {replicas}"):
            next(batches)
    other = pen.Loader(pen.open({"x": np.arange(RECORDS) + 1}).shuffle(seed=7), BATCH)
    with pytest.raises(StateMismatchError):
        batches.load_state_dict(other.state_dict())


def test_a_replica_that_does_not_take_part_gets_a_batch_all_the_same() -> None:
    quorum = Quorum()
    quorum.rank, quorum.replicas = None, 2
    assert len(next(ReplicaBatches(make, quorum, most=2))["x"]) == BATCH // 2
