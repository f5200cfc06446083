"""Batches of a loader as tensors: nothing is copied without need, nothing is lost on the way to a device or into a checkpoint."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.stateful import Stateful

import penstock as pen
from penstock.deliver.torch import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    MaskedTensor,
    RaggedTensor,
    Sampler,
    as_tensors,
    deliver,
)
from penstock.errors import BatchError, StateMismatchError

ELEMENTS = ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "bf16", "f8e4m3fn", "f8e5m2"]


def make_loader(n: int = 23, batch_size: int = 4, **options: Any) -> pen.Loader:
    return pen.Loader(pen.open(np.arange(n), field="x").shuffle(seed=7), batch_size, **options)


def lists(batches: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in batches]


# Tensors


@pytest.mark.parametrize("element", ELEMENTS)
def test_every_element_type_becomes_a_tensor_over_the_same_memory(element: str) -> None:
    array = np.array([[0, 1, 1], [0, 0, 1]]).astype(pen.Field(element).dtype)
    tensor = as_tensors({"x": array})["x"]
    assert tensor.data_ptr() == array.ctypes.data
    assert tensor.shape == array.shape
    assert str(tensor.dtype).removeprefix("torch.") == array.dtype.name
    assert tensor.to(torch.complex128).tolist() == array.astype(np.complex128).tolist()


@pytest.mark.parametrize("element", ["f8e4m3b11fnuz", "M8[s]"])
def test_an_element_type_torch_does_not_have_is_named(element: str) -> None:
    array = np.zeros(3, pen.Field(element).dtype if element.startswith("f8") else element)
    with pytest.raises(TypeError, match=r"torch has no element type (float8_e4m3b11fnuz|datetime64)"):
        as_tensors(array)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_shapes_without_extent_stay(shape: tuple[int, ...]) -> None:
    for element in ("f4", "bf16"):
        assert as_tensors(np.zeros(shape, pen.Field(element).dtype)).shape == shape


def test_arrays_that_a_tensor_cannot_show_are_copied() -> None:
    locked = np.arange(4)
    locked.flags.writeable = False
    brain = np.arange(4).astype(pen.Field("bf16").dtype)[::-1]
    for array in (locked, np.broadcast_to(np.arange(4), (2, 4)), np.arange(4)[::-1], np.arange(4, dtype=">i4"), brain):
        tensor = as_tensors(array)
        assert tensor.tolist() == array.tolist()
        tensor += 1
        assert tensor.tolist() == (array + 1).tolist()


def test_a_part_of_an_array_shares_its_memory() -> None:
    array = np.arange(12).reshape(3, 4)[:, 1]
    assert as_tensors(array).data_ptr() == array.ctypes.data


def test_ragged_arrays_become_values_and_offsets_over_the_same_memory() -> None:
    ragged = pen.Ragged.from_items([[1, 2, 3], [], [4]], dtype="i4")
    tensor = as_tensors({"x": ragged})["x"]
    assert isinstance(tensor, RaggedTensor)
    assert tensor.values.data_ptr() == ragged.values.ctypes.data
    assert tensor.offsets.tolist() == [0, 3, 3, 4]
    assert tensor.shapes is None
    assert tensor.present is None
    nested = tensor.to_nested()
    assert nested.values().data_ptr() == ragged.values.ctypes.data
    assert [item.tolist() for item in nested.unbind()] == [[1, 2, 3], [], [4]]


def test_ragged_arrays_of_two_dimensions_and_missing_ones() -> None:
    ragged = pen.Ragged.from_items([np.ones((2, 3)), None, np.zeros((0, 5))], dtype="f4", ndim=2)
    tensor = as_tensors(ragged)
    assert tensor.shapes.tolist() == [[2, 3], [0, 0], [0, 5]]
    assert tensor.present.tolist() == [True, False, True]
    with pytest.raises(ValueError, match="one dimension"):
        tensor.to_nested()


def test_texts_and_byte_strings_become_lists() -> None:
    batch = {
        "text": pen.Ragged.from_items(["a", None, "ß"], dtype="u1", kind="text"),
        "bytes": pen.Ragged.from_items([b"\0", b""], dtype="u1", kind="bytes"),
        "names": np.array(["x", "yz"]),
        "objects": np.array([None, "y"], object),
    }
    assert as_tensors(batch) == {"text": ["a", None, "ß"], "bytes": [b"\0", b""], "names": ["x", "yz"], "objects": [None, "y"]}


def test_masked_arrays_become_data_and_mask() -> None:
    array = np.ma.MaskedArray(np.arange(3), mask=[False, True, False])
    tensor = as_tensors(array)
    assert isinstance(tensor, MaskedTensor)
    assert tensor.data.data_ptr() == array.data.ctypes.data
    assert tensor.mask.tolist() == [False, True, False]


def test_nests_keep_their_form_and_other_leaves() -> None:
    given = {"a": [np.arange(2), (np.arange(1), "text", 3, None)], "b": torch.ones(1)}
    made = as_tensors(given)
    assert made["a"][0].tolist() == [0, 1]
    assert made["a"][1][0].tolist() == [0]
    assert made["a"][1][1:] == ("text", 3, None)
    assert made["b"] is given["b"]


# deliver


@pytest.mark.parametrize("threads", [0, 2])
def test_deliver_gives_the_batches_of_the_loader(threads: int) -> None:
    delivery = deliver(make_loader(threads=threads))
    assert lists(delivery) + lists(delivery) == lists(plain := make_loader()) + lists(plain)
    assert len(delivery) == 6


@pytest.mark.parametrize("threads", [0, 2])
def test_deliver_shares_the_memory_of_the_loader(threads: int) -> None:
    places = []

    def note(batch: dict[str, Any]) -> dict[str, Any]:
        places.append(batch["x"].ctypes.data)
        return batch

    kept = list(deliver(make_loader(threads=threads, transform=note)))  # kept, so that no memory is used twice
    assert {batch["x"].data_ptr() for batch in kept} == set(places)


def test_what_the_native_engine_read_stays_as_long_as_its_tensor() -> None:
    rows = np.arange(64 * 9000, dtype=np.int64).reshape(64, 9000)
    kept = [batch["data"] for batch in deliver(pen.Loader(pen.open(rows), 4))]
    assert torch.equal(torch.cat(kept), torch.from_numpy(rows))


def test_all_kinds_of_fields_of_a_store_arrive(tmp_path: Path) -> None:
    fields = {
        "image": pen.Field("u1", (2, 2)),
        "score": pen.Field("bf16"),
        "caption": pen.Field.text(),
        "ids": pen.Field.ragged("i4"),
    }
    with pen.create(tmp_path / "a.pen", fields) as out:
        out.extend({"image": np.ones((3, 2, 2)), "score": [1, None, 3], "caption": ["a", "b", "c"], "ids": [[1], [], [2, 3]]})
    [batch] = deliver(pen.Loader(pen.open(tmp_path / "a.pen"), 3))
    assert batch["image"].shape == (3, 2, 2)
    assert batch["score"].data.dtype == torch.bfloat16
    assert batch["score"].mask.tolist() == [False, True, False]
    assert batch["caption"] == ["a", "b", "c"]
    assert batch["ids"].values.tolist() == [1, 2, 3]


def test_forever_goes_on_after_the_epoch() -> None:
    delivery, wanted = deliver(make_loader(), forever=True), make_loader().forever()
    assert [batch["x"].tolist() for batch, _ in zip(delivery, range(20), strict=False)] == [
        next(wanted)["x"].tolist() for _ in range(20)
    ]
    with pytest.raises(ValueError, match="no batch would ever be returned"):
        deliver(make_loader(0), forever=True)


@pytest.mark.parametrize("device", [None, "meta"])
def test_the_state_counts_what_was_handed_out(device: str | None) -> None:
    """Also with a device, where one batch more is under way."""
    straight = lists(loader := make_loader()) + lists(loader)
    for stop in range(12):
        loader = make_loader()
        delivery = deliver(loader, device=device, forever=True)
        for step, _ in enumerate(delivery, start=1):
            if step >= stop:
                break
        state = json.loads(json.dumps(delivery.state_dict()))
        assert state["step"] == max(1, stop)
        again = deliver(make_loader(), forever=True)
        again.load_state_dict(state)
        rest = [batch["x"].tolist() for batch, _ in zip(again, range(12 - state["step"]), strict=False)]
        assert straight[state["step"] :] == rest
        delivery.close()


def test_a_device_gets_every_batch_once() -> None:
    """meta stands for a device of another kind: tensors of shapes without data."""
    loader = make_loader()
    delivery = deliver(loader, device="meta")
    shapes = [(batch["x"].device.type, len(batch["x"]), loader.step) for batch in delivery]
    assert shapes == [("meta", 4 if step < 6 else 3, step) for step in range(1, 7)]
    first = next(iter(delivery))
    assert first["x"].shape == (4,)
    assert loader.step == 7
    loader.seek(5)
    assert [len(batch["x"]) for batch in delivery] == [3]


@pytest.mark.parametrize("device", [None, "meta"])
def test_a_failing_batch_is_raised_at_its_place(device: str | None) -> None:
    def fail(batch: dict[str, Any], info: Any) -> dict[str, Any]:
        if info.step == 3:
            raise ArithmeticError("spoilt")
        return batch

    loader = make_loader(transform=fail)
    batches = iter(deliver(loader, device=device))
    for step in range(3):
        next(batches)
        assert loader.step == step + 1
    for _ in range(2):
        with pytest.raises(BatchError, match=r"step 3.*spoilt"):
            next(batches)
    assert loader.step == 3


@pytest.mark.parametrize("device", [None, "meta"])
def test_leaving_early_stops_the_threads(device: str | None) -> None:
    for _ in range(50):
        for _ in deliver(make_loader(1000, threads=2, transform=dict), device=device):
            break
    with deliver(make_loader(1000, threads=2, transform=dict), device=device) as delivery:
        next(iter(delivery))
    delivery.close()


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="expected a penstock Loader, got list"):
        deliver([])  # type: ignore[arg-type]
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="pin_memory needs a CUDA device"):
            deliver(make_loader(), pin_memory=True)


# Checkpoints


def stateful() -> list[Any]:
    return [
        make_loader(),
        deliver(make_loader()),
        DataLoader(make_loader()),
        IterableDataset(make_loader()),
        BatchSampler(23, 4, seed=7),
        Sampler(23, seed=7),
    ]


@pytest.mark.parametrize("number", range(6))
def test_a_state_lives_in_a_weights_only_checkpoint(number: int) -> None:
    subject, other = stateful()[number], stateful()[number]
    drawn = iter(subject)
    for _ in range(3):
        next(drawn)
    file = io.BytesIO()
    torch.save({"model": torch.zeros(3), "data": subject.state_dict()}, file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True)["data"])
    assert other.state_dict() == subject.state_dict()
    assert list(map(str, other)) == list(map(str, drawn))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one process is what is meant
@pytest.mark.parametrize("number", range(6))
def test_a_state_lives_in_a_distributed_checkpoint(number: int, tmp_path: Path) -> None:
    subject, other = stateful()[number], stateful()[number]
    assert isinstance(subject, Stateful)
    drawn = iter(subject)
    for _ in range(3):
        next(drawn)
    dcp.save({"data": subject}, checkpoint_id=tmp_path, no_dist=True)
    dcp.load({"data": other}, checkpoint_id=tmp_path, no_dist=True)
    assert other.state_dict() == subject.state_dict()
    assert list(map(str, other)) == list(map(str, drawn))


def test_a_state_of_other_data_is_refused() -> None:
    for subject, other in (
        (deliver(make_loader()), deliver(make_loader(24))),
        (Sampler(23, seed=7), Sampler(23, seed=8)),
        (BatchSampler(23, 4, seed=7), BatchSampler(22, 4, seed=7)),
    ):
        with pytest.raises(StateMismatchError):
            other.load_state_dict(subject.state_dict())
        other.load_state_dict(subject.state_dict(), strict=False)
