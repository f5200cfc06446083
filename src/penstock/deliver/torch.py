"""Delivery to PyTorch: tensors of a loader's batches, and what torch's own DataLoader needs to run in a penstock order.

The shortest way is :func:`deliver`: threads read ahead, nothing is copied, the state is exact. Where transforms need processes
there is :class:`DataLoader`, torch's own with an exact state. :class:`Sampler`, :class:`BatchSampler`, :class:`MapDataset` and
:class:`IterableDataset` are for programs that make their torch DataLoader (or torchdata's StatefulDataLoader) themselves.
"""

import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":  # it is there, but something it needs is not
        raise
    raise ImportError("penstock.deliver.torch needs torch: pip install 'penstock[torch]'") from error

from penstock.deliver.torch_data import (
    DataLoader,
    IterableDataset,
    MapDataset,
    MaskedTensor,
    RaggedTensor,
    as_tensors,
    replace_leaves,
)
from penstock.deliver.torch_sampler import BatchSampler, Sampler, UnshardedWarning, begin_with_epoch, check_ranks
from penstock.interrupt import shielded
from penstock.loader import Batches, Loader
from penstock.loader.engine import Engine
from penstock.loader.schedule import Place

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
        if not isinstance(loader, Loader):
            raise TypeError(f"expected a penstock Loader, got {type(loader).__name__}")
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


class _DeviceEngine(Engine):
    """The batches of another engine on a device, each sent there while the one before is used."""

    def __init__(self, engine: Engine, device: torch.device) -> None:
        self._engine, self._device = engine, device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._ahead: tuple[Place, Any] | Exception | None = None

    def take(self) -> tuple[Place, Any]:
        sent = self._send() if self._ahead is None else self._ahead
        if isinstance(sent, Exception):
            raise sent
        self._ahead = self._send()
        place, batch = sent
        if self._side is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_stream(self._side)
            replace_leaves(batch, lambda leaf: leaf.record_stream(stream) if torch.is_tensor(leaf) else None)
        return place, batch

    def _send(self) -> tuple[Place, Any] | Exception:
        """The next batch, on its way; or what went wrong with it, for when it is its turn."""
        try:
            place, batch = self._engine.take()
            with torch.cuda.stream(self._side):  # without a stream this does nothing
                return place, replace_leaves(batch, self._copy)
        except Exception as error:  # the end is one, too
            return error

    def _copy(self, leaf: Any) -> Any:
        return leaf.to(self._device, non_blocking=True) if torch.is_tensor(leaf) else leaf

    def close(self) -> None:
        self._ahead = None
        self._engine.close()


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
