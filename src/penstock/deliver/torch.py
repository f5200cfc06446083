"""Delivery to PyTorch: tensors of a loader's batches, and what torch's own DataLoader needs to run in a penstock order.

The shortest way is :func:`deliver`: threads read ahead, nothing is copied, the state is exact. Where transforms need processes
there is :class:`DataLoader`, torch's own with an exact state. :class:`Sampler`, :class:`BatchSampler`, :class:`MapDataset` and
:class:`IterableDataset` are for programs that make their torch DataLoader (or torchdata's StatefulDataLoader) themselves.

torch's workers are asked for batches before the trainer wants them, and work on copies. So a dataset cannot see what the trainer
has consumed; :class:`DataLoader` can, because every batch passes through it.
"""

import copy
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from penstock.argument import whole_number
from penstock.batch import Batch, Ragged
from penstock.deliver.adapter import OneAhead, check_loader, importing
from penstock.errors import WorkerDiedError
from penstock.interrupt import exposed, lower, shield, shielded
from penstock.loader import Batches, Loader
from penstock.loader.engine import Engine
from penstock.loader.schedule import Place
from penstock.records import Source

with importing("penstock.deliver.torch needs torch", "pip install 'penstock[torch]'", "torch"):
    import torch
    import torch.utils.data
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
    from torch.utils.data.distributed import DistributedSampler

    from penstock.deliver.torch_sampler import (
        BatchSampler,
        Iteration,
        Resumable,
        Sampler,
        UnshardedWarning,
        begin_with_epoch,
        check_ranks,
        go_to_epoch,
    )

__all__ = [
    "BatchSampler",
    "DataLoader",
    "Delivery",
    "IterableDataset",
    "MapDataset",
    "MaskedTensor",
    "RaggedTensor",
    "Sampler",
    "UnshardedWarning",
    "as_tensors",
    "deliver",
    "segment_losses",
]


class RaggedTensor(NamedTuple):
    """Arrays of different lengths: item i is ``values[offsets[i]:offsets[i + 1]]``.

    ``shapes`` has a row per item where items have two dimensions or more; ``present`` is False where an item is missing, and None
    where none can be.

    >>> from penstock import Ragged
    >>> from penstock.deliver.torch import as_tensors
    >>> import numpy as np
    >>> as_tensors(Ragged(np.array([1, 2, 3]), np.array([0, 2, 3]))).offsets
    tensor([0, 2, 3])
    """

    values: torch.Tensor
    offsets: torch.Tensor
    shapes: torch.Tensor | None = None
    present: torch.Tensor | None = None

    def to_nested(self) -> torch.Tensor:
        """A nested tensor of jagged layout over the same memory, for items of one dimension."""
        if self.shapes is not None:
            raise ValueError("only items of one dimension can be a nested tensor")
        return torch.nested.nested_tensor_from_jagged(self.values, self.offsets)


class MaskedTensor(NamedTuple):
    """An array with missing values: ``mask`` is True where ``data`` means nothing, as in numpy.

    >>> import numpy as np
    >>> from penstock.deliver.torch import as_tensors
    >>> as_tensors(np.ma.MaskedArray([1, 0], mask=[False, True])).mask
    tensor([False,  True])
    """

    data: torch.Tensor
    mask: torch.Tensor


def as_tensors(batch: Any) -> Any:
    """A batch with tensors in the place of arrays, at any depth, over the same memory; a ``collate_fn`` for batches read at once.

    Masked arrays become :class:`MaskedTensor`, :class:`~penstock.Ragged` ones :class:`RaggedTensor`; texts and byte strings become
    lists. Copied are only arrays that a tensor cannot show: read-only ones, those of the other byte order or of negative strides.

    >>> import numpy as np
    >>> from penstock.deliver.torch import as_tensors
    >>> as_tensors({"x": np.arange(3), "name": np.array(["a", "b", "c"])})
    {'x': tensor([0, 1, 2]), 'name': ['a', 'b', 'c']}
    """
    return replace_leaves(batch, _tensors)


def replace_leaves(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """The same nest of dicts, lists and tuples with other leaves."""
    if isinstance(value, Mapping):
        return {key: replace_leaves(inner, leaf) for key, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(replace_leaves(inner, leaf) for inner in value))
    if isinstance(value, list | tuple):
        return type(value)(replace_leaves(inner, leaf) for inner in value)
    return leaf(value)


def _tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            return MaskedTensor(_tensor(value.data), _tensor(np.ma.getmaskarray(value)))
        return value.tolist() if value.dtype.kind in "OSU" else _tensor(value)
    if isinstance(value, Ragged):
        if value.kind != "array":
            return value.to_list()
        shapes = None if value.shapes is None else _tensor(value.shapes.astype(np.int64))
        return RaggedTensor(
            _tensor(value.values), _tensor(value.offsets), shapes, None if value.present is None else _tensor(value.present)
        )
    return value


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    if not array.flags.writeable:
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except ValueError:  # the other byte order, or negative strides
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))
    except TypeError as error:
        name = array.dtype.name
        if not name.startswith(("bfloat16", "float8_")) or not hasattr(torch, name):
            raise TypeError(f"torch has no element type {name}: change the field in a transform of the loader") from error
    return _tensor(array.view(f"u{array.itemsize}")).view(getattr(torch, name))


class MapDataset(torch.utils.data.Dataset[Any]):
    """The records of a source for ``torch.utils.data.DataLoader``: a batch is read at once, not record by record.

    Batches come whole, so the DataLoader needs ``collate_fn=as_tensors``.

    >>> import numpy as np, penstock as pen, torch
    >>> from penstock.deliver.torch import BatchSampler, MapDataset, as_tensors
    >>> data = MapDataset(pen.open(np.arange(5) * 10, field="x"))
    >>> [b["x"] for b in torch.utils.data.DataLoader(data, batch_sampler=BatchSampler(data, 3, seed=7), collate_fn=as_tensors)]
    [tensor([10,  0, 30]), tensor([40, 20])]
    """

    def __init__(self, source: Source) -> None:
        if not isinstance(source, Source):
            raise TypeError(f"expected a penstock source, such as penstock.open(...), got {type(source).__name__}")
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, record: int) -> Any:
        return self.source[record]

    def __getitems__(self, ids: list[int]) -> Batch:
        return _WholeBatch(self.source.read(ids))


class _WholeBatch(dict[str, Any]):
    """A batch that torch would take for a list of records."""

    def __missing__(self, key: object) -> NoReturn:
        raise TypeError(f"no field {key!r}; a DataLoader over MapDataset needs collate_fn=penstock.deliver.torch.as_tensors")


class IterableDataset(Resumable[Any], torch.utils.data.IterableDataset[Any]):
    """The batches of a loader, as tensors, for ``torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=...)``.

    Worker w of W makes every W-th batch, and torch takes from the workers in turn, so every number of workers, forked or spawned,
    gives the same batches in the same order. With torchdata's StatefulDataLoader the state is exact by itself. With torch's
    DataLoader it is ``dataset.state_dict(consumed=k)``, with k batches that the trainer had of this iteration.

    The dataset begins at the position of the loader, and has its own cursor from then on: the first iteration continues there,
    each later one is the next epoch. Workers have copies of the dataset, and the original does not see what they do: with workers
    call ``set_epoch`` before each epoch. (Persistent ones do not see what the original does, either: they go from epoch to epoch.)
    :class:`DataLoader` needs no such care. With ``Loader(..., restart=True)`` every iteration begins at step 0.

    >>> import numpy as np, penstock as pen, torch
    >>> from penstock.deliver.torch import IterableDataset
    >>> dataset = IterableDataset(pen.Loader(pen.open({"x": np.arange(6)}), batch_size=4))
    >>> [batch["x"] for batch in torch.utils.data.DataLoader(dataset, batch_size=None)]
    [tensor([0, 1, 2, 3]), tensor([4, 5])]
    """

    def __init__(self, loader: Loader) -> None:
        Resumable.__init__(self, copy.copy(check_loader(loader)))

    def __getstate__(self) -> dict[str, Any]:
        """For a spawned worker. It knows neither the ranks nor what divides among them, so they are checked here."""
        check_ranks(self._loader.shard, is_evaluation=self._loader.restart)
        return self.__dict__

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        return Iteration(self) if worker is None else Iteration(self, worker.id, worker.num_workers)

    def items(self, steps: range) -> Iterator[Any]:
        work, schedule = self._loader.work, self._loader.schedule
        return (as_tensors(work.make(schedule.place(step))) for step in steps)


class DataLoader(torch.utils.data.DataLoader[Any]):
    """torch's DataLoader over a penstock loader: worker processes make its batches, as tensors, in its order.

    The loader's cursor moves with every batch that the trainer takes, so the state is exact, and a run may resume with another
    number of workers. Every ``for`` is the rest of the epoch or the next one, as with the loader; with
    ``Loader(..., restart=True)`` it begins at step 0. Options are torch's (``prefetch_factor``, ``persistent_workers``,
    ``multiprocessing_context``, ``pin_memory``, ...), but for those the loader decides about.

    The loader's ``shard`` divides the batches among the ranks, so Lightning and ``accelerator.prepare`` leave it as it is.

    >>> import numpy as np, penstock as pen
    >>> from penstock.deliver.torch import DataLoader
    >>> batches = DataLoader(pen.Loader(pen.open(np.arange(6), field="x"), batch_size=4))
    >>> [batch["x"] for batch in batches], batches.state_dict()["step"]
    ([tensor([0, 1, 2, 3]), tensor([4, 5])], 2)
    """

    _is_accelerate_prepared = True  # accelerate's own mark: `prepare` gives such a DataLoader back as it is
    use_stateful_dataloader = True  # accelerate's, too: `save_state` and `load_state` take its state along

    def __init__(self, loader: Loader, *, num_workers: int = 0, **options: Any) -> None:
        decided = {"batch_size", "batch_sampler", "collate_fn", "drop_last", "in_order", "sampler", "shuffle"} & set(options)
        if decided:
            raise TypeError(f"the penstock loader decides about {', '.join(sorted(decided))}: leave that out")
        self._loader = check_loader(loader)
        self._places = _PlaceSampler(loader)
        self._served = loader.work  # what persistent workers have a copy of
        super().__init__(
            _Places(loader), batch_size=None, sampler=self._places, collate_fn=as_tensors, num_workers=num_workers, **options
        )

    @property
    def loader(self) -> Loader:
        """Whose batches these are."""
        return self._loader

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        check_ranks(self._loader.shard, is_evaluation=self._loader.restart)
        return self._counted()

    @shielded
    def _counted(self) -> Iterator[Any]:
        """The rest of the epoch, from where the loader stands when the first batch is asked for. The loader moves along."""
        self._loader.rewind()
        if self._served is not self._loader.work:  # a state of an older order was loaded: new workers, with that order
            self._served, self._iterator = self._loader.work, None
        shield(owner := object())
        is_ending = sys.is_finalizing  # the names of this module are gone when the interpreter ends in the middle of an epoch
        batches: Any = None
        try:
            with self._places.counted():
                batches = super().__iter__()
            yield from self._rest(batches)
        except KeyboardInterrupt:  # its traceback would keep the workers alive
            self._iterator = None
            getattr(batches, "_shutdown_workers", int)()
            raise
        finally:
            del batches
            if not is_ending():
                lower(owner)

    @shielded
    def _rest(self, batches: Iterator[Any]) -> Iterator[Any]:
        loader = self._loader
        step, moves = loader.step, loader.moves
        while True:
            try:
                batch = _wait_for_batch(batches)
            except StopIteration:
                return
            except Exception as error:
                error.__traceback__ = None  # torch's frames in it would keep the workers alive until garbage is collected
                if type(error) is RuntimeError and str(error).startswith("DataLoader worker"):
                    raise WorkerDiedError(f"step {step}: {error}") from error
                raise
            if (loader.step, loader.moves) != (step, moves):
                raise RuntimeError(f"the loader was moved from step {step} to {loader.step} meanwhile: begin a new iteration")
            step += 1
            loader.move_to(step)
            moves = loader.moves
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of an epoch. If the loader is within that epoch, it continues there."""
        go_to_epoch(self._loader, epoch)

    def state_dict(self) -> dict[str, Any]:
        """The loader's state."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Let the next iteration resume a run; see :meth:`penstock.Loader.load_state_dict`."""
        self._loader.load_state_dict(state, strict=strict)


@exposed
def _wait_for_batch(batches: Iterator[Any]) -> Any:
    return next(batches)


for _method in ("__init__", "__del__", "_reset", "_try_put_index", "_shutdown_workers"):  # torch starts and ends workers in them
    shielded(getattr(_MultiProcessingDataLoaderIter, _method))


class _Places(torch.utils.data.Dataset[Any]):
    """A batch for each place in the schedule. Workers get places, not steps: they need not know how the run went so far."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        """Samples of an epoch on all ranks, which is what trainers show."""
        return len(self._loader.stream)

    @shielded
    def __getitem__(self, place: Place) -> Any:
        if not isinstance(place, Place):
            raise TypeError("the dataset of a penstock DataLoader has batches, not records: iterate over the DataLoader itself")
        return self._loader.work.make(place)

    __getitems__ = __getitem__  # of a DataLoader that takes the place sampler for a batch sampler


class _PlaceSampler(torch.utils.data.BatchSampler, DistributedSampler[Any]):
    """The places of the rest of the loader's epoch.

    Where another DataLoader draws from it, as accelerate's ``skip_first_batches`` makes one, it begins with the first batch of the
    epoch, whatever state was loaded: then batches are left out once, not twice. The bases are what such programs look at: Lightning
    leaves a DistributedSampler alone, and accelerate looks for a BatchSampler.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._is_counted = False
        self._epoch: int | None = None

    def __len__(self) -> int:
        return len(self._loader)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Iterators made meanwhile do not move the loader."""
        self._is_counted, self._epoch = True, None
        try:
            yield
        finally:
            self._is_counted = False

    def set_epoch(self, epoch: int) -> None:
        """Which epoch another DataLoader is to draw. penstock's own follows the loader."""
        self._epoch = whole_number("epoch", epoch)
        begin_with_epoch(self._loader, epoch)

    def __iter__(self) -> Iterator[Any]:
        return map(self._loader.schedule.place, self._loader.remaining()) if self._is_counted else self._drawn()

    def _drawn(self) -> Iterator[Place]:
        """All of an epoch. The loader moves with every place that is drawn."""
        loader = self._loader
        check_ranks(loader.shard, is_evaluation=loader.restart)
        epoch, self._epoch = loader.epoch if self._epoch is None else self._epoch, None
        loader.begin_epoch(epoch)
        for step in loader.remaining():
            loader.move_to(step + 1)
            yield loader.schedule.place(step)


def deliver(
    loader: Loader, *, device: torch.device | str | int | None = None, pin_memory: bool = False, forever: bool = False
) -> "TorchDelivery":
    """The batches of a loader as tensors; see :func:`as_tensors`.

    On the CPU they share the memory of the loader's arrays. With a ``device`` each batch is sent while the one before is used;
    ``pin_memory`` makes that faster for CUDA, and without a device gives pinned tensors. As with the loader, a ``for`` is the rest
    of the epoch and the next one the next epoch; with ``forever`` it never ends. :class:`UnshardedWarning` where
    ``torch.distributed`` has several ranks and the loader no ``shard``.

    >>> import numpy as np, penstock as pen
    >>> from penstock.deliver.torch import deliver
    >>> batches = deliver(pen.Loader(pen.open(np.arange(6), field="x"), batch_size=4))
    >>> [batch["x"] for batch in batches]
    [tensor([0, 1, 2, 3]), tensor([4, 5])]
    """
    return TorchDelivery(loader, torch.device("cpu" if device is None else device), pin_memory, forever)


class TorchDelivery:
    """Batches of a loader as tensors, made by :func:`deliver`. For one thread. Its state is the loader's.

    >>> import numpy as np, penstock as pen
    >>> from penstock.deliver.torch import deliver
    >>> with deliver(pen.Loader(pen.open({"x": np.arange(6)}), batch_size=4)) as batches:
    ...     first = next(iter(batches))
    ...     batches.state_dict()["step"]
    1
    """

    def __init__(self, loader: Loader, device: torch.device, pin_memory: bool, forever: bool) -> None:
        check_loader(loader)
        if pin_memory and not torch.cuda.is_available():
            raise ValueError("pin_memory needs a CUDA device, found none: leave it out")
        if forever:
            loader.forever()  # refuses data without a single batch
        self._loader, self._device, self._pin, self._forever = loader, device, pin_memory, forever
        self._open: weakref.WeakSet[Batches] = weakref.WeakSet()
        self.sampler, self.batch_sampler = _EpochSampler(loader), None  # where Lightning looks

    @property
    def loader(self) -> Loader:
        """Where the batches come from."""
        return self._loader

    def __len__(self) -> int:
        """Batches of the current epoch, as the loader counts them."""
        return len(self._loader)

    def __iter__(self) -> Batches:
        check_ranks(self._loader.shard, is_evaluation=self._loader.restart)
        batches = _TensorBatches(self._loader, self._device, self._pin, self._forever)
        self._open.add(batches)
        return batches

    def state_dict(self) -> dict[str, Any]:
        """The loader's state; see :meth:`penstock.Loader.state_dict`."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Resume a run; see :meth:`penstock.Loader.load_state_dict`."""
        self._loader.load_state_dict(state, strict=strict)

    @shielded
    def close(self) -> None:
        """Stop reading ahead. Idempotent."""
        for batches in list(self._open):
            batches.close()

    def __enter__(self) -> "TorchDelivery":
        return self

    @shielded
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


Delivery = TorchDelivery


class _EpochSampler(torch.utils.data.SequentialSampler):
    """Nothing is drawn from it; Lightning names the epoch to it, and does not try to replace this kind."""

    def __init__(self, loader: Loader) -> None:
        super().__init__(loader)
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """The epoch with which a loader begins that has not begun."""
        begin_with_epoch(self._loader, epoch)


class _TensorBatches(Batches):
    """Batches whose engine makes tensors."""

    def __init__(self, loader: Loader, device: torch.device, pin_memory: bool, forever: bool) -> None:
        self._device, self._pin = device, pin_memory
        super().__init__(loader, endless=forever)

    def _begin(self) -> Engine:
        engine = _TensorEngine(super()._begin(), self._pin)
        if self._device.type == "cpu":
            return engine
        try:
            return _DeviceEngine(engine, self._device)
        except BaseException:
            engine.close()
            raise


class _TensorEngine(Engine):
    """The batches of another engine as tensors in memory."""

    def __init__(self, engine: Engine, pin_memory: bool) -> None:
        self._engine, self._pin = engine, pin_memory

    def take(self) -> tuple[Place, Any]:
        place, batch = self._engine.take()
        tensors = as_tensors(batch)
        return place, replace_leaves(
            tensors, lambda leaf: leaf.pin_memory() if torch.is_tensor(leaf) else leaf
        ) if self._pin else tensors

    def close(self) -> None:
        self._engine.close()


class _DeviceEngine(OneAhead):
    """The batches of another engine on one device."""

    def __init__(self, engine: Engine, device: torch.device) -> None:
        super().__init__(engine, self._sent)
        self._device = device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def take(self) -> tuple[Place, Any]:
        place, batch = super().take()
        if self._side is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_stream(self._side)
            replace_leaves(batch, lambda leaf: leaf.record_stream(stream) if torch.is_tensor(leaf) else None)
        return place, batch

    def _sent(self, batch: Any) -> Any:
        with torch.cuda.stream(self._side):  # without a stream this does nothing
            return replace_leaves(batch, lambda leaf: leaf.to(self._device, non_blocking=True) if torch.is_tensor(leaf) else leaf)


def segment_losses(
    losses: torch.Tensor,
    segment: torch.Tensor,
    weights: torch.Tensor | None = None,
    *,
    most: int | None = None,
    first_segment: int = 0,
) -> torch.Tensor:
    """The mean loss of every document of packed samples, for a :class:`penstock.LossLog` with ``per="document"``.

    ``losses`` has a loss for every token, ``segment`` the number of its document as packs give it, ``weights`` 0 where a token
    does not count. The result is f32[samples, most], filled up with ``ABSENT``, which the log leaves out. ``most`` is the largest
    number of documents in a sample: give it on a device, which must be waited for to find it out. With fewer than there are,
    documents would be left out: the log is then refused when it is read.

    >>> import torch
    >>> from penstock.deliver.torch import segment_losses
    >>> segment_losses(torch.tensor([[1.0, 3.0, 5.0, 9.0]]), torch.tensor([[0, 0, 1, -1]]))
    tensor([[2., 5.]])
    """
    with torch.no_grad():
        number = segment.long() - first_segment
        if losses.shape != number.shape or losses.dim() != 2:
            raise ValueError(f"expected losses and segments of one shape [samples, tokens], got {losses.shape} and {segment.shape}")
        width = int(number.max().item()) + 1 if most is None else most
        counts = torch.ones_like(losses, dtype=torch.float32) if weights is None else weights.float()
        counts = torch.where((number >= 0) & (number < width), counts, 0.0)
        place = number.clamp(0, max(width - 1, 0))
        shape = (losses.shape[0], max(width, 1))
        values = torch.where(counts != 0, losses.detach().float() * counts, 0.0)
        sums = torch.zeros(shape, device=losses.device).scatter_add_(1, place, values)
        sizes = torch.zeros(shape, device=losses.device).scatter_add_(1, place, counts)
        documents = number.amax(dim=1, keepdim=True) + 1
        is_there = torch.arange(shape[1], device=losses.device) < documents
        bits = torch.where(sizes > 0, sums / sizes, 0.0).view(torch.int32)
        bits = torch.where(sizes > 0, bits, -1)
        found: torch.Tensor = torch.where(is_there, bits, -2).view(torch.float32)
        return found[:, :width]
