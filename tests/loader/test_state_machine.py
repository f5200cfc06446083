"""A loader beside plain lists: any sequence of batches, states, seeks, epochs, other ranks, threads and batch sizes."""

import json
from itertools import islice
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.loader.model import (
    TAILS,
    WORLDS,
    Cell,
    delivered_ids,
    make_stream,
    naive_batches,
    naive_ids,
    naive_place,
    refuses,
    unite,
)

import penstock as pen
from penstock.order import Shard

SIZES = (24, 48)  # for every number of ranks
State = tuple[Any, bytes, int, int]


class LoaderMachine(RuleBasedStateMachine):
    """The model is the list of all batches from the last change of the batch size on, and the place in it."""

    states: Bundle[State] = Bundle("states")

    @initialize(
        n=st.sampled_from([1, 5, 24, 30, 97, 200]),
        kind=st.sampled_from(["sequential", "shuffle", "blocks", "random"]),
        tail=st.sampled_from(TAILS),
        size=st.sampled_from(SIZES),
        world=st.sampled_from(WORLDS),
        threads=st.sampled_from([0, 1, 2]),
    )
    def begin(self, n: int, kind: str, tail: str, size: int, world: int, threads: int) -> None:
        tail = "keep" if refuses(n, size, tail) else tail
        self.stream, self.tail, self.size, self.threads = make_stream(n, kind), tail, size, threads
        self.n = len(self.stream)
        self.ranks: list[pen.Loader] = []
        self.runs: list[Any] = []
        self.start, self.anchor = 0, (0, 0)
        self.lay_out()
        self.at = 0
        self.open(world)

    def lay_out(self) -> None:
        """The batches from the anchor on."""
        epoch, position = self.anchor
        self.batches: list[list[Cell]] = list(
            islice(naive_batches(self.n, self.size, self.tail, epoch=epoch, position=position), 80)
        )

    def open(self, world: int) -> None:
        """Fresh loaders for so many ranks."""
        self.shut()
        self.ranks = [
            pen.Loader(self.stream, self.size, tail=self.tail, shard=Shard(rank, world), threads=self.threads, ids="id")
            for rank in range(world)
        ]

    def shut(self) -> None:
        for run in self.runs:
            run.close()
        self.runs = []

    def teardown(self) -> None:
        if hasattr(self, "runs"):
            self.shut()

    @property
    def place(self) -> tuple[int, int]:
        """Where the run stands."""
        return naive_place(self.n, self.size, self.tail, self.batches[: self.at]) if self.at else self.anchor

    @precondition(lambda self: self.at < len(self.batches) - 1)
    @rule(count=st.integers(1, 4), endless=st.booleans())
    def next_batches(self, count: int, endless: bool) -> None:
        """Take batches. A loop over an epoch ends where the epoch does, and the next one goes on."""
        if not self.runs:
            self.runs = [loader.forever() if endless else iter(loader) for loader in self.ranks]
        for _ in range(min(count, len(self.batches) - 1 - self.at)):
            parts = []
            for rank, loader in enumerate(self.ranks):
                batch = next(self.runs[rank], None)
                for _again in range(2):  # the rest of an epoch may have no batch
                    if batch is None:
                        self.runs[rank] = iter(loader)
                        batch = next(self.runs[rank], None)
                parts.append(delivered_ids(batch))
            assert unite(parts) == naive_ids(self.stream.order, self.batches[self.at])
            self.at += 1

    @precondition(lambda self: self.at < len(self.batches) - 1)
    @rule()
    def rest_of_epoch(self) -> None:
        """One loop to its end."""
        self.shut()
        epoch = self.ranks[0].epoch
        mine = [cells for cells in self.batches[self.at :] if cells[0] is not None and cells[0][0] == epoch]
        if self.batches[-1][0][0] == epoch:  # type: ignore[index]  # the model does not see the end
            return
        found = [list(loader) for loader in self.ranks]
        assert [unite([delivered_ids(part) for part in parts]) for parts in zip(*found, strict=True)] == [
            naive_ids(self.stream.order, cells) for cells in mine
        ]
        self.at += len(mine)

    def jump(self, number: int) -> None:
        for loader in self.ranks:
            loader.seek(self.start + number)
        self.at = number

    @precondition(lambda self: self.batches)
    @rule(share=st.floats(0, 1))
    def seek(self, share: float) -> None:
        """To any step of this run."""
        self.jump(int(share * (len(self.batches) - 1)))

    @rule(target=states, rank=st.integers(0, 7))
    def save(self, rank: int) -> State:
        """The state of one rank is that of the run."""
        loader = self.ranks[rank % len(self.ranks)]
        return json.loads(json.dumps(loader.state_dict())), loader.get_state(), self.size, self.start + self.at

    @rule(state=states, world=st.sampled_from(WORLDS), threads=st.sampled_from([0, 1, 2]), fresh=st.booleans())
    def load(self, state: State, world: int, threads: int, fresh: bool) -> None:
        """Go on with a state, perhaps on other ranks, perhaps in the middle of a loop."""
        self.threads = threads
        if fresh:
            self.open(world)
        self.go_to(state)

    @rule(state=states, size=st.sampled_from(SIZES), world=st.sampled_from(WORLDS))
    def load_with_other_batches(self, state: State, size: int, world: int) -> None:
        """Go on with batches of another size."""
        self.size = self.size if refuses(self.n, size, self.tail) else size
        self.open(world)
        self.go_to(state)

    def go_to(self, state: State) -> None:
        saved, packed, _, step = state
        for loader in self.ranks:
            loader.load_state_dict(saved)
            assert (loader.step, loader.get_state()) == (step, packed)
        cursor = self.ranks[0].cursor
        self.start, self.anchor, self.at = step, (cursor.epoch, cursor.position), 0
        self.lay_out()

    @invariant()
    def ranks_agree(self) -> None:
        """All ranks stand at the same place, which is that of the model."""
        if not hasattr(self, "ranks"):
            return
        assert {loader.step for loader in self.ranks} == {self.start + self.at}
        if self.at or self.batches:
            assert {(loader.cursor.epoch, loader.cursor.position) for loader in self.ranks} <= {self.place, self.skipped()}

    def skipped(self) -> tuple[int, int]:
        """Where nothing is left of an epoch, a loop that begins goes on to the next."""
        return (self.place[0] + 1, 0) if self.at == 0 and self.batches and self.batches[0][0] != self.anchor else self.place


LoaderMachine.TestCase.settings = settings(max_examples=settings.default.max_examples, stateful_step_count=30)


@pytest.mark.usefixtures("leak_fence")
class TestLoaderMachine(LoaderMachine.TestCase):  # type: ignore[misc, valid-type]
    """Run by pytest."""
