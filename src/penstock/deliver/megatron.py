"""Delivery to Megatron-core: packed documents as its dataset items, and micro-batches dealt to ranks, without building an index.

Sample i of a run is a formula of i, so ``consumed_samples`` of its checkpoints is the whole state: no document,
sample and shuffle indices are built, stored and shared, and the data-parallel degree may change. Nothing of Megatron is imported:
this is the form in which it takes data.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.data

from penstock.argument import whole_number
from penstock.deliver.adapter import check_fields
from penstock.deliver.torch import as_tensors
from penstock.loader import Loader
from penstock.order import Shard
from penstock.stream import Stream

__all__ = ["MegatronSamples", "MicroBatches"]

NEEDED = ("tokens", "labels", "position")
CAUSAL_NEEDS = "segment"


class MegatronSamples(torch.utils.data.Dataset[dict[str, Any]]):
    """Packs as Megatron's GPT samples: ``tokens``, ``labels`` and ``position_ids`` (i64), ``loss_mask`` (f32).

    ``stream`` has the fields tokens, labels and position; with cu_seqlens and max_seqlen they are in the items, too.
    ``attention_mask=True`` adds a boolean mask [1, L, L], True where a token must not look, and needs the field segment.
    Labels that do not count are 0 with a loss mask of 0. Samples are numbered through all epochs: item i is in epoch i // n.
    Item None is one that fills up a batch: its loss mask is 0.

    >>> import penstock as pen
    >>> from penstock.deliver.megatron import MegatronSamples
    >>> packs = pen.open({"text": ["abc", "de"]}).in_order().pack(5, fields=("tokens", "labels", "position"))
    >>> samples = MegatronSamples(packs, num_samples=1000)
    >>> len(samples), samples[0]["loss_mask"].tolist()
    (1000, [1.0, 1.0, 0.0, 0.0, 0.0])
    """

    def __init__(self, stream: Stream, *, num_samples: int | None = None, attention_mask: bool = False) -> None:
        needed = (*NEEDED, CAUSAL_NEEDS) if attention_mask else NEEDED
        check_fields("stream", stream.schema, needed)
        self._loader = Loader(stream, 1, tail="wrap", threads=0)
        self._loader.forever().close()  # refuses a stream without samples
        self._length = len(stream) if num_samples is None else whole_number("num_samples", num_samples)
        self._masked = attention_mask
        self._runs: dict[int, Loader] = {}
        self._has_runs = self._loader.stream is stream  # otherwise the samples depend on the size of batches

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int | None) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int | None]) -> list[dict[str, Any]]:
        """Several items; those that follow each other are read at once."""
        for index in indices:
            if index is not None and not 0 <= index < self._length:
                raise IndexError(f"expected a sample from 0 to {self._length - 1}, got {index}")
        batch = self._run(indices)
        if batch is not None:
            return [self._item({name: values[row] for name, values in batch.items()}) for row in range(len(indices))]
        return [self._one(index) for index in indices]

    def _run(self, indices: Sequence[int | None]) -> Mapping[str, Any] | None:
        """The samples of one step of a loader, if these are: micro-batches are."""
        first, size = indices[0] if indices else None, len(indices)
        if not self._has_runs or size < 2 or first is None or first % size or list(indices) != list(range(first, first + size)):
            return None
        if size not in self._runs:
            self._runs[size] = Loader(self._loader.stream, size, tail="wrap", threads=0)
        batch: Mapping[str, Any] = self._runs[size].batch(first // size)
        return batch

    def _one(self, index: int | None) -> dict[str, Any]:
        item = self._item({name: values[0] for name, values in self._loader.batch(index or 0).items()})
        if index is None:
            item["loss_mask"].zero_()
        return item

    def _item(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        counts = sample["labels"] >= 0
        made = {
            "tokens": sample["tokens"].astype(np.int64),
            "labels": np.where(counts, sample["labels"], 0).astype(np.int64),
            "loss_mask": counts.astype(np.float32),
            "position_ids": sample["position"].astype(np.int64),
        }
        if self._masked:
            segment = sample["segment"]
            sees = np.tril(segment[:, None] == segment[None, :])
            made["attention_mask"] = ~sees[None]
        made |= {name: np.asarray(sample[name]) for name in ("cu_seqlens", "max_seqlen") if name in sample}
        tensors: dict[str, Any] = as_tensors(made)
        return tensors


class MicroBatches:
    """A ``batch_sampler``: the micro-batches of this data-parallel rank, from ``consumed_samples`` on.

    Rank r of D takes samples r * m to r * m + m - 1 of every D * m, as Megatron's own sampler does: the samples of a global batch
    are the same for every D. ``num_samples`` ends it, ``None`` does not; a last round that is too short for all ranks is left out.
    """

    def __init__(self, num_samples: int | None, *, consumed_samples: int, micro_batch_size: int, shard: Shard) -> None:
        self._num_samples = num_samples
        self._consumed = whole_number("consumed_samples", consumed_samples)
        self._size = whole_number("micro_batch_size", micro_batch_size, least=1)
        self._shard = shard

    def __iter__(self) -> Iterator[list[int]]:
        first, stride = self._consumed, self._size * self._shard.world
        while self._num_samples is None or first + stride <= self._num_samples:
            start = first + self._shard.rank * self._size
            yield list(range(start, start + self._size))
            first += stride

    def __len__(self) -> int:
        """Micro-batches of this rank from ``consumed_samples`` on; TypeError without an end."""
        if self._num_samples is None:
            raise TypeError("micro-batches without an end have no length")
        return max(0, self._num_samples - self._consumed) // (self._size * self._shard.world)
