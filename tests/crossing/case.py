"""A case: a stream, and the ranks that load it one after the other."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.crossing import data as data_module
from tests.crossing.model import NAMES, WIDTH, Balanced, Job, Mix, PhasedJob, Sample, Stream, cost
from tests.order.reference import deal

import penstock as pen
from penstock import Balance, Field, Loader, Phase, Shard, mix


def telling(batch: dict[str, Any], info: Any) -> dict[str, Any]:
    """A transform that puts what it was told into the batch."""
    count = len(info.ids)
    batch["told"] = np.tile(np.array([info.step, info.epoch], np.int64), (count, 1))
    batch["told_ids"], batch["told_seeds"] = np.array(info.ids), np.array(info.seeds)
    return batch


def nothing(batch: dict[str, Any]) -> None:
    """A transform that forgot its return."""


NAMES.update(
    {"Balance": Balance, "Field": Field, "Loader": Loader, "Phase": Phase, "Shard": Shard, "mix": mix, "np": np, "open": pen.open}
    | {name: getattr(data_module, name) for name in ("doubled", "faulty", "reversed_text")}
    | {"telling": telling, "nothing": nothing, "inf": float("inf")}
)


@dataclass(frozen=True)
class Leg:
    """Ranks that take ``take`` batches; then the run is saved, and goes on with the next leg."""

    take: int
    size: int | None = None
    phases: tuple[Phase, ...] | None = None
    tail: str = "keep"
    world: int = 1
    threads: int = 0
    ids: bool = False
    transform: str | None = None
    on_error: str = "raise"
    restart: bool = False
    forever: bool = False
    seek: int | None = None
    balance: Balanced | None = None
    tokens: int | None = None  # batch_tokens=; the size is then that of the world
    kept: int | None = None  # amendments that the mixture has in this leg; None: all

    def code(self, stream: str, rank: str = "rank") -> str:
        options = [repr(self.size)] if self.tokens is None else [f"batch_tokens={self.tokens}"]
        options = options if self.phases is None else [f"phases={list(self.phases)!r}"]
        options += [f"tail={self.tail!r}"] * (self.tail != "keep") + [f"threads={self.threads}"]
        options += [f"shard=Shard({rank}, {self.world})"] * (self.world > 1) + ["ids='id'"] * self.ids
        options += [f"transform={self.transform}"] * (self.transform is not None) + ["restart=True"] * self.restart
        options += [f"on_error={self.on_error!r}"] * (self.on_error != "raise")
        if self.balance is not None:
            by, micro = self.balance
            options.append(f"balance=Balance({by!r}, width={WIDTH}, micro_batches={micro})")
        return f"Loader({stream}, {', '.join(options)})"

    def slots(self, stream: Stream, rows: list[Sample | None]) -> list[list[list[int]]]:
        """The samples of a batch that every rank has, by number, in each of its micro-batches; those that fill it up apart."""
        own = [row for row in rows if row is not None]
        if self.balance is None:
            return [[list(range(rank, len(own), self.world))] for rank in range(self.world)]
        by, micro = self.balance
        size = len(rows) if self.phases is not None else self.size
        return deal([cost(stream, row, by) for row in own], size or 1, self.world, micro)

    def share(self, stream: Stream, rows: list[Sample | None], rank: int) -> list[Sample | None]:
        """The samples of a rank's batch."""
        filling = [None] * len(range(rank, len(rows), self.world))
        mine = [rows[number] for slot in self.slots(stream, rows)[rank] for number in slot]
        return [*mine, *filling[len(mine) :]]

    def actions(self) -> str:
        seek = f".seek({self.seek})" if self.seek is not None else ""
        return f"{seek} {'forever ' if self.forever else ''}{self.take} batches"

    def job(self, stream: Stream) -> Job:
        return Job(stream, self.size or 1, self.tail) if self.phases is None else PhasedJob(stream, self.phases)

    @property
    def balance_by_lengths(self) -> bool:
        return self.balance is not None and self.balance[0] in ("attention", "tokens")

    @property
    def tags(self) -> frozenset[str]:
        found = {f"tail {self.tail}", f"threads {self.threads}"}
        for tag, given in (
            ("phases", self.phases is not None),
            ("phase weights", any(phase.weights is not None for phase in self.phases or ())),
            ("phase epochs", any(phase.epochs is not None for phase in self.phases or ())),
            ("ranks", self.world > 1),
            ("ids", self.ids),
            ("transform", self.transform is not None),
            ("restart", self.restart),
            ("forever", self.forever),
            ("seek", self.seek is not None),
            ("on_error skip", self.on_error == "skip"),
            ("balance", self.balance is not None and not self.balance_by_lengths),
            ("balance by lengths", self.balance_by_lengths),
            ("micro-batches", self.balance is not None and self.balance[1] > 1),
            ("batch_tokens", self.tokens is not None),
        ):
            if given:
                found.add(tag)
        return frozenset(found)


@dataclass(frozen=True)
class Case:
    """What is loaded, and by which ranks."""

    seed: int
    stream: Stream
    legs: tuple[Leg, ...]

    def code(self) -> str:
        lines: list[str] = []
        for leg in self.legs:
            made = f"stream = {self.stream_of(leg).code()}"
            lines += [] if made in lines else [made]
            lines.append(f"{leg.code('stream')}  # for rank in range({leg.world}):{leg.actions()}")
        return "\n".join(lines)

    def stream_of(self, leg: Leg) -> Stream:
        """What a leg loads: the mixture with the amendments that it has by then."""
        return self.stream if leg.kept is None or not isinstance(self.stream, Mix) else self.stream.unamended(leg.kept)

    @property
    def tags(self) -> frozenset[str]:
        found = self.stream.tags.union(*(leg.tags for leg in self.legs))
        for earlier, later in zip(self.legs, self.legs[1:], strict=False):
            found |= {"resume"}
            found |= {"resume world"} if earlier.world != later.world else set()
            found |= {"resume size"} if earlier.size != later.size else set()
            found |= {"resume tail"} if earlier.tail != later.tail else set()
            found |= {"resume amended"} if earlier.kept != later.kept else set()
        return found | ({"resume chain"} if len(self.legs) > 2 else set())
