"""Delivery to OLMo-core: its data loader over packed documents, with one state for all ranks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from penstock.argument import whole_number
from penstock.deliver.adapter import check_fields, document_lengths, importing
from penstock.deliver.torch import as_tensors, deliver
from penstock.loader import Loader
from penstock.order import Shard
from penstock.stream import Stream

with importing("penstock.deliver.olmo_core needs OLMo-core", "pip install ai2-olmo-core", "olmo_core"):
    from olmo_core.data.data_loader import DataLoaderBase

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
        check_fields("stream", stream.schema, NEEDED)
        (self._length,) = stream.schema["tokens"].shape
        self._stream, self._number = stream, 0
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

    @property
    def epoch(self) -> int:
        """From 1 on."""
        if not self._number:
            raise RuntimeError("the epoch is not known yet: call reshuffle()")
        return self._number

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._number or None, "batches_processed": self.batches_processed, "loader": self._loader.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a run stood, on any number of ranks; see :meth:`penstock.Loader.load_state_dict`."""
        if "loader" not in state_dict:
            raise ValueError(f"expected the state of a penstock data loader, got one with the keys {sorted(state_dict)}")
        self._loader.load_state_dict(state_dict["loader"])
        self._number, self.batches_processed = state_dict["epoch"] or 0, state_dict["batches_processed"]

    def reshuffle(self, epoch: int | None = None, **rest: Any) -> None:
        """Name the epoch, from 1 on. Nothing is built: the order of an epoch is a formula."""
        self._number = self._number + 1 if epoch is None else whole_number("epoch", epoch, least=1)
        if self.batches_processed == 0:
            self._loader.begin_epoch(self._number - 1)

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
    lengths = document_lengths(batch["segment"].numpy())
    return {
        "input_ids": batch["tokens"].long(),
        "labels": batch["labels"].long(),
        "doc_lens": torch.from_numpy(lengths),
        "max_doc_lens": lengths.max(axis=1).tolist(),
    }
