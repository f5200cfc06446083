"""Delivery to OLMo-core: its data loader over packed documents, with one state for all ranks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    from olmo_core.data.data_loader import DataLoaderBase
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "olmo_core":  # it is there, but something it needs is not
        raise
    raise ImportError("penstock.deliver.olmo_core needs OLMo-core: pip install ai2-olmo-core") from error

import torch

from penstock.deliver.torch import as_tensors, deliver
from penstock.loader import Loader
from penstock.order import Shard
from penstock.stream import Stream

__all__ = ["OlmoDataLoader"]

NEEDED = ("tokens", "labels", "segment")


class OlmoDataLoader(DataLoaderBase):  # type: ignore[misc]
    """A data loader for OLMo-core's Trainer. For one thread.

    ``stream`` is packs with the fields tokens, labels and segment, or a mixture of them. ``global_batch_size`` counts tokens, and
    may be changed while a run goes on. A batch has ``input_ids`` and ``labels`` (i64 [b, L]; labels -100 where a document ends),
    ``doc_lens`` (i32 [b, most documents], 0 where there is none) and ``max_doc_lens``. A last batch that is too short is left out.
    """

    def __init__(
        self, stream: Stream, *, global_batch_size: int, work_dir: str | Path, dp_world_size: int = 1, dp_rank: int = 0, **rest: Any
    ) -> None:
        super().__init__(
            work_dir=work_dir, global_batch_size=global_batch_size, dp_world_size=dp_world_size, dp_rank=dp_rank, **rest
        )
        missing = [name for name in NEEDED if name not in stream.schema]
        if missing:
            raise ValueError(f"the stream has no field {', '.join(missing)}: use pack(..., fields={NEEDED})")
        (self._length,) = stream.schema["tokens"].shape
        self._stream = stream
        self._loader = self._made()

    def _made(self) -> Loader:
        if self.global_batch_size % (self._length * self.dp_world_size):
            raise ValueError(
                f"global_batch_size must be a multiple of {self._length * self.dp_world_size} tokens (sequences of {self._length}, "
                f"{self.dp_world_size} ranks), got {self.global_batch_size}"
            )
        shard = Shard(self.dp_rank, self.dp_world_size)
        return Loader(self._stream, self.global_batch_size // self._length, shard=shard, tail="drop")

    @property
    def global_batch_size(self) -> int:
        """Tokens of a batch on all ranks."""
        return int(super().global_batch_size)

    @global_batch_size.setter
    def global_batch_size(self, size: int) -> None:
        DataLoaderBase.global_batch_size.__set__(self, size)  # it checks, and counts batches anew
        state = self._loader.state_dict()
        self._loader = self._made()
        self._loader.load_state_dict(state)

    @property
    def loader(self) -> Loader:
        """Whose batches these are."""
        return self._loader

    @property
    def total_batches(self) -> int | None:
        """Batches of the epoch; None if it never ends."""
        try:
            return len(self._loader)
        except TypeError:
            return None

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "batches_processed": self.batches_processed, "loader": self._loader.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a run stood, on any number of ranks; see :meth:`penstock.Loader.load_state_dict`."""
        if "loader" not in state_dict:
            raise ValueError(f"expected the state of a penstock data loader, got one with the keys {sorted(state_dict)}")
        self._loader.load_state_dict(state_dict["loader"])
        self._epoch, self.batches_processed = state_dict["epoch"], state_dict["batches_processed"]

    def reshuffle(self, epoch: int | None = None, **rest: Any) -> None:
        """Name the epoch, from 1 on. Nothing is built: the order of an epoch is a formula."""
        if epoch is None:
            epoch = 1 if self._epoch is None else self._epoch + 1
        if epoch < 1:
            raise ValueError(f"epochs count from 1, got {epoch}")
        self._epoch = epoch
        if self.batches_processed == 0:
            self._loader.begin_epoch(epoch - 1)

    def _iter_batches(self) -> Iterator[dict[str, Any]]:
        if self._loader.epoch >= self.epoch and self.batches_processed:  # resumed behind the last batch of an epoch
            return
        loader = None
        while loader is not self._loader:  # another one after the batch size was changed
            loader = self._loader
            for batch in deliver(loader):
                yield _as_olmo(batch)
                if loader is not self._loader:
                    break

    def get_mock_batch(self) -> dict[str, Any]:
        """The first batch; the loader stays where it is."""
        return _as_olmo(as_tensors(self._loader.batch(0)))

    def global_num_tokens_in_batch(self, batch: dict[str, Any]) -> int:
        return self.global_batch_size


def _as_olmo(batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    """A document begins where the segment changes; the padding of a row is one, too."""
    segment = batch["segment"]
    starts = torch.ones_like(segment, dtype=torch.bool)
    starts[:, 1:] = segment[:, 1:] != segment[:, :-1]
    end = torch.tensor([segment.shape[1]])
    lengths = [torch.diff(torch.nonzero(row).flatten(), append=end).to(torch.int32) for row in starts]
    return {
        "input_ids": batch["tokens"].long(),
        "labels": batch["labels"].long(),
        "doc_lens": torch.nn.utils.rnn.pad_sequence(lengths, batch_first=True),
        "max_doc_lens": [int(one.max()) for one in lengths],
    }
