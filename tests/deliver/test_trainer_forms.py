"""Packed batches in the forms of trainers, compared with what is made of the documents one by one."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch.utils.data

import penstock as pen
from penstock.deliver.adapter import document_lengths
from penstock.deliver.huggingface import padding_free, with_bounds
from penstock.deliver.maxtext import maxtext
from penstock.deliver.megatron import MegatronSamples, MicroBatches

LENGTH = 8
FIELDS = ("tokens", "labels", "segment", "position")


def packs(**options: Any) -> pen.Stream:
    lengths = np.random.default_rng(1).integers(1, 6, 30)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    documents = pen.Ragged(np.arange(1, offsets[-1] + 1, dtype="i4"), offsets)
    return pen.open({"tokens": documents}).shuffle(seed=7).pack(LENGTH, **{"fields": FIELDS, **options})


def pieces(batch: dict[str, Any]) -> list[npt.NDArray[Any]]:
    """The documents of a batch in order; the padding of a row is one, too."""
    found = []
    for tokens, segment in zip(batch["tokens"], batch["segment"], strict=True):
        found += np.split(tokens, np.flatnonzero(np.diff(segment)) + 1)
    return found


def plain() -> dict[str, Any]:
    batch: dict[str, Any] = pen.Loader(packs(), 12).batch(0)
    assert (batch["segment"] < 0).any()
    return batch


def test_padding_free_is_the_documents_one_after_the_other() -> None:
    batch = plain()
    flat, found = padding_free(batch), pieces(batch)
    assert {name: (value.shape, value.dtype) for name, value in flat.items()} == dict.fromkeys(
        ("input_ids", "labels", "position_ids"), ((1, 12 * LENGTH), np.int64)
    )
    assert flat["input_ids"][0].tolist() == np.concatenate(found).tolist()
    assert flat["position_ids"][0].tolist() == np.concatenate([np.arange(len(one)) for one in found]).tolist()
    wanted = [np.where(np.arange(len(one)) > 0, one, -100) if one[0] else np.full(len(one), -100) for one in found]
    assert flat["labels"][0].tolist() == np.concatenate(wanted).tolist()


def test_bounds_are_where_documents_begin() -> None:
    batch = plain()
    flat, lengths = with_bounds(batch), [len(one) for one in pieces(batch)]
    assert flat["cu_seq_lens_q"].tolist() == flat["cu_seq_lens_k"].tolist() == [0, *np.cumsum(lengths)]
    assert flat["cu_seq_lens_q"].dtype == np.int32
    assert flat["max_length_q"] == flat["max_length_k"] == max(lengths)
    del batch["segment"]  # then every token of the padding is a document
    assert len(with_bounds(batch)["cu_seq_lens_q"]) > len(lengths) + 1
    with pytest.raises(ValueError, match=r"no field labels, position: use pack\(\.\.\., fields="):
        padding_free({"tokens": batch["tokens"]})


def test_segment_0_is_padding_for_maxtext() -> None:
    batch = pen.Loader(packs(first_segment=1), 12, transform=maxtext).batch(0)
    other = plain()
    assert batch["inputs"].tolist() == other["tokens"].tolist()
    assert ((batch["inputs_segmentation"] == 0) == (other["segment"] < 0)).all()
    counts = other["labels"] >= 0
    assert (batch["targets"][counts] == other["labels"][counts]).all()
    assert ((batch["targets_segmentation"] > 0) == counts).all()
    assert not batch["targets"][~counts].any()
    with pytest.raises(ValueError, match="segment 0 is padding for MaxText"):
        maxtext(other)
    full = {name: column[other["segment"].min(axis=1) == 0] for name, column in other.items()}  # rows without padding
    with pytest.raises(ValueError, match="segment 0 is padding for MaxText"):
        maxtext(full)
    with pytest.raises(ValueError, match="no field labels, segment, position"):
        maxtext({"tokens": batch["inputs"]})


def test_samples_of_megatron_are_numbered_through_the_epochs() -> None:
    stream = packs(fields=(*FIELDS, "cu_seqlens", "max_seqlen"))
    samples, count = MegatronSamples(stream, num_samples=100, attention_mask=True), len(stream)
    loader = pen.Loader(stream, 1, tail="wrap")
    for index in (0, 5, count - 1, count, 2 * count + 3):
        item, row = samples[index], {name: column[0] for name, column in loader.batch(index).items()}
        assert item["tokens"].tolist() == row["tokens"].tolist()
        assert item["position_ids"].tolist() == row["position"].tolist()
        assert item["loss_mask"].tolist() == (row["labels"] >= 0).tolist()
        assert item["labels"].tolist() == np.maximum(row["labels"], 0).tolist()
        assert item["cu_seqlens"].tolist() == row["cu_seqlens"].tolist()
        same = row["segment"][:, None] == row["segment"][None]
        assert item["attention_mask"].tolist() == [(~np.tril(same)).tolist()]
    filling = samples[None]
    assert filling["loss_mask"].dtype == torch.float32
    assert not filling["loss_mask"].any()
    with pytest.raises(IndexError, match="from 0 to 99, got 100"):
        samples[100]
    with pytest.raises(ValueError, match=r"no field segment: use pack"):
        MegatronSamples(packs(fields=("tokens", "labels", "position")), attention_mask=True)


@pytest.mark.parametrize("world", [1, 2, 3, 6])
def test_micro_batches_of_all_ranks_are_the_global_batches(world: int) -> None:
    """12 samples a step, whatever the number of ranks; a last round that is too short for all of them is left out."""
    ranks = [
        list(MicroBatches(100, consumed_samples=24, micro_batch_size=2, shard=pen.Shard(rank, world))) for rank in range(world)
    ]
    a_step = 12 // (2 * world)
    for step in range(6):
        dealt = [index for rank in ranks for batch in rank[step * a_step : (step + 1) * a_step] for index in batch]
        assert sorted(dealt) == list(range(24 + 12 * step, 36 + 12 * step))
    one = MicroBatches(100, consumed_samples=24, micro_batch_size=2, shard=pen.Shard(0, world))
    assert len(one) == len(ranks[0]) == 76 // (2 * world)
    endless = MicroBatches(None, consumed_samples=10**15, micro_batch_size=2, shard=pen.Shard(world - 1, world))
    assert next(iter(endless)) == [10**15 + 2 * world - 2, 10**15 + 2 * world - 1]
    with pytest.raises(TypeError, match="no length"):
        len(endless)


def test_a_data_loader_collates_samples_of_megatron() -> None:
    samples = MegatronSamples(packs(), num_samples=50)
    dealt = MicroBatches(50, consumed_samples=4, micro_batch_size=2, shard=pen.Shard(1, 2))
    batch = next(iter(torch.utils.data.DataLoader(samples, batch_sampler=dealt)))
    assert batch["tokens"].tolist() == [samples[6]["tokens"].tolist(), samples[7]["tokens"].tolist()]


@pytest.mark.parametrize("unit", ["sample", "batch", "steps"])
def test_samples_of_megatron_are_the_same_one_by_one_and_in_runs(unit: str) -> None:
    """Also of a mixture whose samples depend on the size of batches."""
    weights: Any = [(0, {"a": 1, "b": 2}), (9, {"a": 3, "b": 1})] if unit == "steps" else {"a": 1, "b": 2}
    kinds = {"unit": "batch"} if unit == "batch" else {}
    stream = pen.mix({"a": packs(), "b": packs(split="always")}, weights=weights, seed=3, stop="forever", **kinds)
    samples = MegatronSamples(stream, num_samples=1000)
    for run in ([0, 1, 2, 3], [40, 41, 42, 43], [41, 42, 43, 44], [5, 4], [8, None], [9], []):
        found = samples.__getitems__(run)
        assert len(found) == len(run)
        for index, item in zip(run, found, strict=True):
            wanted = samples[index]
            assert {name: value.tolist() for name, value in item.items()} == {name: v.tolist() for name, v in wanted.items()}
    with pytest.raises(IndexError, match="from 0 to 999, got 1000"):
        samples.__getitems__([999, 1000])


def test_document_lengths_are_those_of_the_pieces() -> None:
    batch = plain()
    lengths = document_lengths(batch["segment"])
    assert [n for row in lengths.tolist() for n in row if n] == [len(one) for one in pieces(batch)]
    assert lengths.sum(axis=1).tolist() == [LENGTH] * 12
    assert document_lengths(batch["segment"][:0]).shape == (0, 0)


def test_a_healed_replica_takes_the_state_of_another() -> None:
    """As torchft does: the state of a replica that lives is given to one that joins, and the number of replicas may change."""

    def make(rank: int, world: int) -> pen.Loader:
        return pen.Loader(packs(), 6, shard=pen.Shard(rank, world), tail="wrap")

    def step(loaders: list[pen.Loader]) -> list[list[int]]:
        return sorted(row for loader in loaders for row in next(loader.forever())["tokens"].tolist())

    whole = [sorted(make(0, 1).batch(number)["tokens"].tolist()) for number in range(9)]
    replicas = [make(rank, 2) for rank in range(2)]
    found = [step(replicas) for _ in range(3)]
    replicas[1] = make(1, 2)  # it died and begins with nothing
    replicas[1].load_state_dict(replicas[0].state_dict())
    found += [step(replicas) for _ in range(3)]
    joined = [make(rank, 3) for rank in range(3)]
    for loader in joined:
        loader.load_state_dict(replicas[0].state_dict())
    found += [step(joined) for _ in range(3)]
    assert found == whole
