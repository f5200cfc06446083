"""A case: a stream, and the ranks that load it one after the other."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.crossing import data as data_module
from tests.crossing.model import NAMES, Job, PhasedJob, Stream

import penstock as pen
from penstock import Field, Loader, Phase, Shard, mix


def telling(batch: dict[str, Any], info: Any) -> dict[str, Any]:
    """A transform that puts what it was told into the batch."""
    count = len(info.ids)
    batch["told"] = np.tile(np.array([info.step, info.epoch], np.int64), (count, 1))
    batch["told_ids"], batch["told_seeds"] = np.array(info.ids), np.array(info.seeds)
    return batch


def nothing(batch: dict[str, Any]) -> None:
    """A transform that forgot its return."""


NAMES.update(
    {"Field": Field, "Loader": Loader, "Phase": Phase, "Shard": Shard, "mix": mix, "np": np, "open": pen.open}
    | {name: getattr(data_module, name) for name in ("doubled", "faulty", "reversed_text")}
    | {"telling": telling, "nothing": nothing}
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

    def code(self, stream: str, rank: str = "rank") -> str:
        options = [repr(self.size)] if self.phases is None else [f"phases={list(self.phases)!r}"]
        options += [f"tail={self.tail!r}"] * (self.tail != "keep") + [f"threads={self.threads}"]
        options += [f"shard=Shard({rank}, {self.world})"] * (self.world > 1) + ["ids='id'"] * self.ids
        options += [f"transform={self.transform}"] * (self.transform is not None) + ["restart=True"] * self.restart
        options += [f"on_error={self.on_error!r}"] * (self.on_error != "raise")
        return f"Loader({stream}, {', '.join(options)})"

    def actions(self) -> str:
        seek = f".seek({self.seek})" if self.seek is not None else ""
        return f"{seek} {'forever ' if self.forever else ''}{self.take} batches"

    def job(self, stream: Stream) -> Job:
        return Job(stream, self.size or 1, self.tail) if self.phases is None else PhasedJob(stream, self.phases)

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
        lines = [f"stream = {self.stream.code()}"]
        lines += [f"{leg.code('stream')}  # for rank in range({leg.world}):{leg.actions()}" for leg in self.legs]
        return "\n".join(lines)

    @property
    def tags(self) -> frozenset[str]:
        found = self.stream.tags.union(*(leg.tags for leg in self.legs))
        for earlier, later in zip(self.legs, self.legs[1:], strict=False):
            found |= {"resume"}
            found |= {"resume world"} if earlier.world != later.world else set()
            found |= {"resume size"} if earlier.size != later.size else set()
            found |= {"resume tail"} if earlier.tail != later.tail else set()
        return found | ({"resume chain"} if len(self.legs) > 2 else set())
