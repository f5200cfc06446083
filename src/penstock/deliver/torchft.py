"""Delivery to torchft: every step's batch dealt among the replicas that take part in it. Nothing of torchft is imported."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from penstock.argument import whole_number
from penstock.deliver.torch import deliver
from penstock.loader import Loader
from penstock.order import Shard

__all__ = ["ReplicaBatches"]


class Manager(Protocol):
    """What is asked of ``torchft.Manager``."""

    def current_step(self) -> int:
        """The step that is trained now, from 0."""

    def participating_rank(self) -> int | None:
        """The place of this replica group in the quorum; None if its gradients do not count."""

    def num_participants(self) -> int:
        """The replica groups whose gradients count."""


class ReplicaBatches:
    """Batches of a run whose replicas come and go, as tensors. For one thread.

    ``make(shard)`` makes a loader with a global ``batch_size``; ``most`` replica groups, and any smaller number, must divide it.
    ``next`` gives this replica's part of the batch of the manager's step, among the replicas of the quorum: call it after
    ``start_quorum`` (or ``zero_grad`` of torchft's optimizer). A step that is not committed comes again, divided among those that
    are left; a replica that was healed begins with the step of the others, and reads none before it. So the committed steps see
    every sample once, in the order of an undisturbed run. ``group`` is the place of this process in its replica group.

    >>> import numpy as np, penstock as pen
    >>> from penstock.deliver.torchft import ReplicaBatches
    >>> stream = pen.open({"x": np.arange(12)}).in_order()
    >>> class Manager:
    ...     step, rank, world = 0, 0, 2
    ...     current_step = lambda self: self.step
    ...     participating_rank = lambda self: self.rank
    ...     num_participants = lambda self: self.world
    >>> manager = Manager()
    >>> batches = ReplicaBatches(lambda shard: pen.Loader(stream, 4, shard=shard, tail="wrap"), manager, most=2)
    >>> next(batches)["x"]
    tensor([0, 2])
    >>> manager.world = 1  # the other one died, and step 0 was not committed
    >>> next(batches)["x"]
    tensor([0, 1, 2, 3])
    """

    def __init__(self, make: Callable[[Shard], Loader], manager: Manager, *, most: int, group: Shard | None = None) -> None:
        self._make, self._manager, self._group = make, manager, Shard() if group is None else group
        for replicas in range(1, whole_number("most", most, least=1) + 1):  # refused now, not when a replica is lost
            loader = make(self._shard(0, replicas))
        self._most, self._loader = most, loader
        self._batches = iter(deliver(loader, forever=True))

    def _shard(self, rank: int, replicas: int) -> Shard:
        return Shard(rank * self._group.world + self._group.rank, replicas * self._group.world)

    def __iter__(self) -> "ReplicaBatches":
        return self

    def __next__(self) -> dict[str, Any]:
        """The batch of the manager's step. A replica that does not take part gets the first one's: its gradients are not used."""
        rank, replicas = self._manager.participating_rank(), self._manager.num_participants()
        if not 1 <= replicas <= self._most:
            raise RuntimeError(
                f"expected a quorum of 1 to {self._most} replicas, found {replicas}: call start_quorum before, or raise most"
            )
        shard = self._shard(rank or 0, replicas)
        if shard != self._loader.shard:
            self._batches.close()
            self._loader = self._make(shard)
            self._batches = iter(deliver(self._loader, forever=True))
        if self._loader.step != self._manager.current_step():
            self._loader.seek(self._manager.current_step())
        batch: dict[str, Any] = next(self._batches)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The loader's state at the manager's step: the same on all replicas, for the manager and for checkpoints."""
        return self._loader.state_at(self._manager.current_step())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Refuse other data or another order with StateMismatchError; where to go on is the manager's step."""
        self._loader.load_state_dict(state)

    def close(self) -> None:
        """Stop reading ahead. Idempotent."""
        self._batches.close()
