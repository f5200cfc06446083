"""Delivery to JAX: the batches of a loader as ``jax.Array`` under a sharding, one batch ahead on the devices.

With several processes (``jax.distributed``) a batch is one global array, of which every process holds the rows that it read: rank r
has the samples p with p mod world = r, so the rows of the global array are grouped by process. On one process they stand in the
order of the stream. Each batch holds the same samples either way.
"""

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

try:
    import jax
except ModuleNotFoundError as error:
    if error.name != "jax":  # it is there, but something it needs is not
        raise
    raise ImportError("penstock.deliver.jax needs jax: pip install 'penstock[jax]'") from error

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from penstock.deliver.jax_placing import Placing, Shardings
from penstock.interrupt import shielded
from penstock.loader import Batches, Loader
from penstock.loader.engine import Engine
from penstock.loader.schedule import Place

__all__ = ["Delivery", "deliver"]


def deliver(loader: Loader, *, sharding: Shardings | None = None, forever: bool = False) -> "Delivery":
    """The batches of a loader as jax arrays, in order, each sent to the devices while the one before is used.

    ``sharding`` is one for all leaves, or a dict by field name. Without one, the samples of a batch are divided among all devices:
    ``PartitionSpec("data")`` over a mesh with the one axis "data". Leaves without dimensions are copied to every device.
    A batch that cannot be divided evenly is refused. ``forever`` never ends; otherwise ``for batch in delivery`` is the rest of the
    epoch and the next ``for`` the next epoch, as with the loader; with ``Loader(..., restart=True)`` it begins at step 0.

    Element types stay as they are, but where ``jax_enable_x64`` is off those of 64 bits become 32 bits wide; ValueError if a whole
    number does not fit. Texts, ragged and masked fields have no form in jax: pad, fill or drop them in ``transform=``.

    With several processes the loader needs ``shard=Shard(jax.process_index(), jax.process_count())``.

    >>> import numpy as np, penstock as pen
    >>> from penstock.deliver.jax import deliver
    >>> batches = deliver(pen.Loader(pen.open(np.arange(6), field="x"), batch_size=4))
    >>> [batch["x"] for batch in batches]
    [Array([0, 1, 2, 3], dtype=int32), Array([4, 5], dtype=int32)]
    """
    return Delivery(loader, _over_all_devices() if sharding is None else sharding, forever)


def _over_all_devices() -> NamedSharding:
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    return NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec("data"))  # type: ignore[no-untyped-call]


class Delivery:
    """Batches of a loader as jax arrays, made by :func:`deliver`. For one thread.

    The loader's cursor counts what was handed out, not what is on the devices before its turn, so a state is exact at any time.

    >>> import numpy as np, penstock as pen
    >>> from penstock.deliver.jax import deliver
    >>> with deliver(pen.Loader(pen.open({"x": np.arange(6)}), batch_size=4)) as batches:
    ...     first = next(batches)
    ...     batches.state_dict()["step"]
    1
    """

    def __init__(self, loader: Loader, sharding: Shardings, forever: bool) -> None:
        if not isinstance(loader, Loader):
            raise TypeError(f"expected a penstock Loader, got {type(loader).__name__}")
        if forever:
            loader.forever()  # it refuses a loader that has no batch
        self._loader, self._forever = loader, forever
        self._placing = Placing(loader, sharding)
        self._placing.check()
        self._batches: _DeviceBatches | None = None
        self._ended = False

    @property
    def loader(self) -> Loader:
        """Where the batches come from."""
        return self._loader

    @property
    def sharding(self) -> Shardings:
        """How the leaves lie on the devices."""
        return self._placing.sharding

    def __len__(self) -> int:
        """Batches of the current epoch, those already delivered included."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        if self._loader.restart:
            self._begin_anew()
            return self._begun()  # one of its own: a loop over it goes on, a loop over the delivery begins at step 0
        if self._ended:
            self._begin_anew()
        return self

    def __next__(self) -> Any:
        try:
            return next(self._begun())
        except StopIteration:
            self._ended = True
            raise

    def _begun(self) -> "_DeviceBatches":
        if self._batches is None:
            self._batches = _DeviceBatches(self._loader, self._forever, self._placing)
        return self._batches

    def state_dict(self) -> dict[str, Any]:
        """The loader's state as plain JSON types, after the batches that were handed out."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on where a run stood; see :meth:`penstock.Loader.load_state_dict`."""
        self._loader.load_state_dict(state, strict=strict)
        self._begin_anew()

    def get_state(self) -> bytes:
        """The loader's 24-byte cursor."""
        return self._loader.get_state()

    def set_state(self, state: bytes) -> None:
        """Go to the place of a cursor; see :meth:`penstock.Loader.set_state`."""
        self._loader.set_state(state)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.close()
        self._batches, self._ended = None, False

    @shielded
    def close(self) -> None:
        """Stop reading ahead and let go of the batch that waits. Idempotent; a later ``next`` goes on behind the last batch."""
        if self._batches is not None:
            self._batches.close()

    def __enter__(self) -> "Delivery":
        return self

    @shielded
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class _DeviceBatches(Batches):
    """The iterator of a loader, with devices behind its engine."""

    def __init__(self, loader: Loader, endless: bool, placing: Placing) -> None:
        self._placing = placing
        super().__init__(loader, endless=endless)

    def _begin(self) -> Engine:
        self._placing.check()  # again: the loader may have been moved to where batches have another size
        return _OneAhead(super()._begin(), self._placing)


class _OneAhead(Engine):
    """The batches of another engine on the devices, always one more than was asked for. An error comes at its batch's turn."""

    def __init__(self, engine: Engine, placing: Placing) -> None:
        self._engine, self._placing = engine, placing
        self._next: tuple[Place, Any] | Exception | None = None

    def take(self) -> tuple[Place, Any]:
        found = self._send() if self._next is None else self._next
        if isinstance(found, Exception):
            raise found
        self._next = self._send()
        return found

    def _send(self) -> tuple[Place, Any] | Exception:
        try:
            place, batch = self._engine.take()
            return place, self._placing.put(batch)
        except Exception as error:
            return error

    def close(self) -> None:
        self._next = None
        self._engine.close()
