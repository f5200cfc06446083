"""Delivery to PyTorch: tensors of a loader's batches, and what torch's own DataLoader needs to run in a penstock order.

The shortest way is :func:`deliver`: threads read ahead, nothing is copied, the state is exact. Where transforms need processes there
is :class:`DataLoader`, torch's own with an exact state. :class:`Sampler`, :class:`BatchSampler`, :class:`MapDataset` and
:class:`IterableDataset` are for programs that make their torch DataLoader (or torchdata's StatefulDataLoader) themselves.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple

import torch

from penstock.deliver.torch_data import DataLoader, IterableDataset, MapDataset
from penstock.deliver.torch_sampler import BatchSampler, Sampler
from penstock.deliver.torch_tensor import MaskedTensor, RaggedTensor, as_tensors, replace_leaves
from penstock.loader import Batches, Loader

__all__ = [
    "BatchSampler",
    "DataLoader",
    "Delivery",
    "IterableDataset",
    "MapDataset",
    "MaskedTensor",
    "RaggedTensor",
    "Sampler",
    "as_tensors",
    "deliver",
]


def deliver(
    loader: Loader, *, device: torch.device | str | int | None = None, pin_memory: bool = False, forever: bool = False
) -> "Delivery":
    """The batches of a loader as tensors; see :func:`as_tensors`.

    On the CPU they share the memory of the loader's arrays. With a ``device`` each batch is sent while the one before is used;
    ``pin_memory`` makes that faster for CUDA, and without a device gives pinned tensors. ``forever`` never ends; otherwise
    ``for batch in delivery`` is the rest of the epoch and the next ``for`` the next epoch, as with the loader.

    >>> import numpy as np, penstock as pen
    >>> from penstock.deliver.torch import deliver
    >>> batches = deliver(pen.Loader(pen.open(np.arange(6), field="x"), batch_size=4))
    >>> [batch["x"] for batch in batches]
    [tensor([0, 1, 2, 3]), tensor([4, 5])]
    """
    return Delivery(loader, None if device is None else torch.device(device), pin_memory, forever)


class Delivery:
    """Batches of a loader as tensors, made by :func:`deliver`. For one thread.

    Its state counts what was handed out. With a device one batch more has left the loader: save the delivery's state then, not
    the loader's.
    """

    def __init__(self, loader: Loader, device: torch.device | None, pin_memory: bool, forever: bool) -> None:
        if not isinstance(loader, Loader):
            raise TypeError(f"expected a penstock Loader, got {type(loader).__name__}")
        if pin_memory and not torch.cuda.is_available():
            raise ValueError("pin_memory needs a CUDA device, found none: leave it out")
        self._loader, self._pin, self._forever = loader, pin_memory, forever
        self._device = None if device is None or device.type == "cpu" else device
        self._side = torch.cuda.Stream(device) if device is not None and device.type == "cuda" else None
        self._batches: Batches | None = None
        self._ended = False
        self._ahead: _Sent | None = None

    def __len__(self) -> int:
        """Batches of the current epoch, as the loader counts them."""
        return len(self._loader)

    def __iter__(self) -> "Delivery":
        if self._batches is None or self._ended:
            self._batches, self._ended = self._loader.forever() if self._forever else iter(self._loader), False
        return self

    def __next__(self) -> Any:
        if self._device is None:
            return self._take()
        sent, self._ahead = self._waiting(), None
        batch = self._send() if sent is None else sent.batch
        state = self._loader.state_dict()
        try:
            self._ahead = _Sent(self._send(), state, self._loader._moves)
        except Exception:  # of the next batch, or the end: it comes again when it is that one's turn
            self._ahead = None
        return self._arrived(batch)

    def _take(self) -> Any:
        if self._batches is None:
            iter(self)
        assert self._batches is not None
        try:
            batch = as_tensors(next(self._batches))
        except BaseException:
            self._ended = True
            raise
        return replace_leaves(batch, _pinned) if self._pin else batch

    def _send(self) -> Any:
        """The next batch, on its way to the device."""
        batch = self._take()
        with torch.cuda.stream(self._side):  # no stream, no effect
            return replace_leaves(batch, lambda leaf: leaf.to(self._device, non_blocking=True) if torch.is_tensor(leaf) else leaf)

    def _arrived(self, batch: Any) -> Any:
        """A batch that the caller's stream may use."""
        if self._side is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_stream(self._side)
            replace_leaves(batch, lambda leaf: leaf.record_stream(stream) if torch.is_tensor(leaf) else None)
        return batch

    def _waiting(self) -> "_Sent | None":
        """The batch that was sent ahead, unless the loader was moved since."""
        return self._ahead if self._ahead is not None and self._ahead.moves == self._loader._moves else None

    def state_dict(self) -> dict[str, Any]:
        """The loader's state after the batches that were handed out."""
        sent = self._waiting()
        return self._loader.state_dict() if sent is None else sent.state

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on where a run stood; see :meth:`penstock.Loader.load_state_dict`."""
        self._loader.load_state_dict(state, strict=strict)

    def close(self) -> None:
        """Stop reading ahead. The loader then stands behind the last batch that was handed out. Idempotent."""
        if self._waiting() is not None:
            self._loader.seek(self._loader.step - 1)
        batches, self._batches, self._ahead = self._batches, None, None
        if batches is not None:
            batches.close()

    def __enter__(self) -> "Delivery":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class _Sent(NamedTuple):
    """A batch that was sent ahead, the state without it, and where the loader was last moved to."""

    batch: Any
    state: dict[str, Any]
    moves: int


def _pinned(leaf: Any) -> Any:
    return leaf.pin_memory() if torch.is_tensor(leaf) else leaf
