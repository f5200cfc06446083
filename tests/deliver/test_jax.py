"""Batches of a loader as jax arrays: the right values on the right devices, and a state that counts what the trainer got."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import islice, product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from tests.effort import every, is_campaign

import penstock as pen
from penstock.deliver.jax import deliver
from penstock.errors import BatchError, StateError, StateMismatchError
from penstock.loader.resume_check import verify_resume
from penstock.source import write_tokens

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
WAIT_S = 600


def make_loader(n: int = 23, batch_size: int = 4, **options: Any) -> pen.Loader:
    return pen.Loader(pen.open(np.arange(n), field="x").shuffle(seed=7), batch_size, **options)


def lists(batches: Any) -> list[list[int]]:
    return [np.asarray(batch["x"]).tolist() for batch in batches]


def first(data: Any, **options: Any) -> Any:
    """The first batch, on the devices."""
    with deliver(pen.Loader(pen.open(data), 4, **options)) as batches:
        return next(batches)


# Order and epochs


def test_batches_are_those_of_the_loader_over_all_devices() -> None:
    data = {"image": np.arange(600, dtype=np.uint8).reshape(20, 5, 6), "label": np.arange(20, dtype=np.int16)}
    expected = list(pen.Loader(pen.open(data).shuffle(seed=3), 8))
    with deliver(pen.Loader(pen.open(data).shuffle(seed=3), 8)) as batches:
        found = list(batches)
    assert len(found) == len(expected) == 3
    for batch, wanted in zip(found, expected, strict=True):
        assert batch.keys() == wanted.keys()
        for name, array in batch.items():
            assert isinstance(array, jax.Array)
            assert array.dtype == wanted[name].dtype
            assert array.sharding.spec == P("data")
            assert array.sharding.device_set == set(jax.devices())
            assert np.array_equal(array, wanted[name])


def test_each_for_is_an_epoch_as_with_the_loader() -> None:
    loader = make_loader()
    with deliver(make_loader()) as batches:
        for _ in range(3):
            assert len(batches) == 6
            assert lists(batches) == lists(loader)


def test_after_the_end_stays_the_end() -> None:
    with deliver(make_loader()) as batches:
        assert len(lists(batches)) == 6
        for _ in range(3):
            with pytest.raises(StopIteration):
                next(batches)
        assert batches.loader.epoch == 1
        assert lists(batches) != []


def test_forever_goes_on_across_epochs() -> None:
    loader = make_loader()
    expected = lists(loader) + lists(loader) + lists(loader)
    with deliver(make_loader(), forever=True) as batches:
        assert lists(islice(batches, 18)) == expected


def test_forever_without_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="no batch would ever be returned"):
        deliver(make_loader(0), forever=True)


def test_a_for_that_was_left_goes_on_where_it_was() -> None:
    with deliver(make_loader()) as batches:
        found = lists(islice(batches, 2))
        assert found + lists(batches) == lists(make_loader())


def test_every_for_over_a_restarting_loader_begins_at_step_0() -> None:
    straight = lists(make_loader())
    with deliver(make_loader(restart=True)) as batches:
        for count in (6, 2, 0, 4, 6):
            assert lists(islice(batches, count)) == straight[:count]
        running = iter(batches)
        assert lists(islice(running, 2)) + lists(running) == straight
        assert lists(batches) == straight
    with deliver(make_loader(restart=True)) as batches:
        assert lists([next(batches)]) == straight[:1]
        assert lists(batches) == straight


def test_closing_lets_go_and_the_next_batch_is_the_next() -> None:
    before = threading.active_count()
    batches = deliver(make_loader(transform=lambda batch: batch, threads=3))
    found = lists(islice(batches, 2))
    assert threading.active_count() == before + 3
    batches.close()
    batches.close()
    assert threading.active_count() == before
    assert found + lists(batches) == lists(make_loader())
    batches.close()


def test_batches_that_are_kept_keep_their_values() -> None:
    """On the CPU an array may lie in the loader's memory, which is used again when nobody holds it."""
    data = np.random.default_rng(0).integers(0, 255, (256, 8192), np.uint8)
    stream = pen.open(data, field="x").shuffle(seed=1)
    with deliver(pen.Loader(stream, 8, ids="id")) as batches:
        kept = list(batches)
    assert len(kept) == 32
    assert all(np.array_equal(batch["x"], data[np.asarray(batch["id"])]) for batch in kept)


# State


def test_the_batch_that_waits_on_the_device_is_not_counted() -> None:
    made: list[int] = []

    def note(batch: Any, info: Any) -> Any:
        made.append(info.step)
        return batch

    expected = lists(make_loader())
    with deliver(make_loader(transform=note, threads=0)) as batches:
        for step in range(1, 6):
            next(batches)
            assert made == list(range(step + 1))
            assert batches.state_dict() == batches.loader.state_dict()
            assert batches.state_dict()["step"] == batches.loader.step == step
            with deliver(make_loader()) as resumed:
                resumed.load_state_dict(batches.state_dict())
                assert lists(resumed) == expected[step:]
            with deliver(make_loader()) as resumed:
                resumed.set_state(batches.get_state())
                assert lists(resumed) == expected[step:]


Data = dict[str, pen.Source]


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """Two sets of tokens: 0 to 899, and 1000 to 1399."""
    for name, tokens in (("a", range(900)), ("b", range(1000, 1400))):
        write_tokens([np.array(tokens, np.uint16)], tmp_path / f"{name}.rox", block_size=50)
    return {name: pen.open(tmp_path / f"{name}.rox") for name in ("a", "b")}


PHASES = [pen.Phase(5, batch_size=4, seq_len=8), pen.Phase(4, batch_size=2, seq_len=16)]


def mixture(data: Data) -> pen.Stream:
    streams = {name: source.shuffle(seed=1).sequences(8) for name, source in data.items()}
    return pen.mix(streams, weights={"a": 0.7, "b": 0.3}, seed=5)


LOADERS: dict[str, Callable[[Data], pen.Loader]] = {
    "records": lambda data: make_loader(),
    "wrapped": lambda data: make_loader(tail="wrap"),
    "padded": lambda data: make_loader(tail="pad"),
    "sequences": lambda data: pen.Loader(data["a"].shuffle(seed=3).sequences(30), 4),
    "mixture": lambda data: pen.Loader(mixture(data), 8),
    "phases": lambda data: pen.Loader(data["a"].shuffle(seed=3).sequences(8), phases=PHASES),
    "phases of a mixture": lambda data: pen.Loader(mixture(data), phases=PHASES),
}


@pytest.mark.parametrize(("name", "forever"), every(3, list(product(LOADERS, [False, True])), 1))
def test_a_run_can_be_resumed_after_any_batch(name: str, forever: bool, data: Data) -> None:
    assert verify_resume(lambda: deliver(LOADERS[name](data), forever=forever), steps=14).steps >= 9


def test_phases_change_the_shape_of_batches(data: Data) -> None:
    stream = data["a"].in_order().sequences(8)
    with deliver(pen.Loader(stream, phases=PHASES)) as batches:
        found = [batch["tokens"] for batch in batches]
        assert len(batches) == len(found) == 9
        assert list(batches) == []
    assert [array.shape for array in found] == [(4, 8)] * 5 + [(2, 16)] * 4
    assert np.concatenate([np.asarray(array).ravel() for array in found]).tolist() == list(range(9 * 32))


def test_the_state_is_plain_json_and_a_pytree_of_numbers_and_texts() -> None:
    with deliver(make_loader()) as batches:
        next(batches)
        state = batches.state_dict()
        rest = lists(batches)
    assert json.loads(json.dumps(state)) == state
    leaves, structure = jax.tree.flatten(state)
    assert {type(leaf) for leaf in leaves} == {int, str}
    with deliver(make_loader()) as resumed:
        resumed.load_state_dict(jax.tree.unflatten(structure, leaves))
        assert lists(resumed) == rest


def test_a_state_can_be_loaded_at_any_time() -> None:
    expected = lists(make_loader())
    with deliver(make_loader()) as batches:
        next(batches)
        state, packed = batches.state_dict(), batches.get_state()
        assert lists(batches) == expected[1:]
        batches.load_state_dict(state)
        assert lists(batches) == expected[1:]
        batches.set_state(packed)
        assert np.asarray(next(batches)["x"]).tolist() == expected[1]
        batches.loader.seek(4)
        assert lists(batches) == expected[4:]


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    expected = lists(make_loader())
    with deliver(make_loader()) as batches:
        next(batches)
        with pytest.raises(StateMismatchError):
            batches.load_state_dict(make_loader(22).state_dict())
        with pytest.raises(StateError):
            batches.set_state(b"short")
        assert lists(batches) == expected[1:]
        batches.load_state_dict(make_loader(22).state_dict(), strict=False)
        assert lists(batches) == expected


# Errors


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_comes_at_its_batch_and_stays(threads: int) -> None:
    def fail(batch: Any, info: Any) -> Any:
        if info.step == 3 and not mended:
            raise OSError("broken")
        return batch

    mended = False
    expected = lists(make_loader())
    with deliver(make_loader(transform=fail, threads=threads)) as batches:
        assert lists(islice(batches, 3)) == expected[:3]
        for _ in range(3):
            with pytest.raises(BatchError, match=r"step 3, .*broken"):
                next(batches)
            with pytest.raises(BatchError, match=r"step 3, .*broken"):
                list(batches)
        assert batches.state_dict()["step"] == 3
        mended = True
        batches.load_state_dict(batches.state_dict())
        assert lists(batches) == expected[3:]


def test_an_interrupt_loses_nothing() -> None:
    def interrupt(batch: Any, info: Any) -> Any:
        if info.step == 3 and not seen:
            seen.append(info.step)
            raise KeyboardInterrupt
        return batch

    seen: list[int] = []
    expected = lists(make_loader())
    with deliver(make_loader(transform=interrupt, threads=0)) as batches:
        assert lists(islice(batches, 2)) == expected[:2]
        with pytest.raises(KeyboardInterrupt):  # while batch 3 is made, before batch 2 is handed out
            next(batches)
        assert lists(batches) == expected[2:]


def test_a_value_that_jax_cannot_hold_comes_at_its_batch() -> None:
    data = np.arange(12) + np.where(np.arange(12) == 6, 2**40, 0)
    with deliver(pen.Loader(pen.open(data, field="x"), 4)) as batches:
        assert np.asarray(next(batches)["x"]).tolist() == [0, 1, 2, 3]
        for _ in range(2):
            with pytest.raises(ValueError, match=f"field 'x' has the value {2**40 + 6}, which does not fit int32"):
                next(batches)


def test_only_a_loader_can_be_delivered() -> None:
    with pytest.raises(TypeError, match="expected a penstock Loader, got list"):
        deliver([1, 2])  # type: ignore[arg-type]


# Element types


@pytest.mark.parametrize(
    "dtype",
    ["?", "i1", "i2", "i4", "u1", "u2", "u4", "f2", "f4", "c8", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2],
)
def test_element_types_stay(dtype: Any) -> None:
    array = np.array([0, 1, 1, 0]).astype(dtype)
    found = first({"x": array})["x"]
    assert found.dtype == array.dtype
    assert np.asarray(found).tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("given", "wanted"), [("i8", "i4"), ("u8", "u4"), ("f8", "f4"), ("c16", "c8"), (">i8", "i4"), (">i4", "i4"), (">f4", "f4")]
)
def test_64_bits_become_32_without_x64(given: str, wanted: str) -> None:
    array = np.array([0, 1, 7, 2**31 - 1 if "i" in given else 0.5 if "f" in given else 2**32 - 1]).astype(given)
    found = first(np.zeros(4), transform=lambda batch: {"x": array})["x"]
    assert found.dtype == np.dtype(wanted)
    assert np.asarray(found).tolist() == array.astype(wanted).tolist()


@pytest.mark.parametrize(("dtype", "value"), [("i8", 2**31), ("i8", -(2**31) - 1), ("u8", 2**32), ("u8", 2**64 - 1)])
def test_a_whole_number_that_does_not_fit_is_named(dtype: str, value: int) -> None:
    array = np.array([0, 1, value, 3], dtype)
    with pytest.raises(ValueError, match=f"field 'x' has the value {value}, which does not fit u?int32: turn on jax_enable_x64"):
        first({"x": array})


@pytest.mark.parametrize("dtype", ["i8", "u8", "f8", "c16"])
def test_64_bits_stay_with_x64(dtype: str) -> None:
    array = np.array([0, 1, 2**62, 3]).astype(dtype)
    with jax.enable_x64(True):
        found = first({"x": array})["x"]
        assert found.dtype == array.dtype
        assert np.array_equal(found, array)


def test_no_rows_fit_every_type() -> None:
    assert first(np.zeros(4), transform=lambda batch: {"x": np.empty((0, 3), np.int64)})["x"].shape == (0, 3)


@pytest.mark.parametrize(
    ("leaf", "told"),
    [
        (
            pen.Ragged.from_items([[1], [2, 3]], dtype="i4"),
            r"'x' has records of different lengths: pad\(\) or drop it in transform=",
        ),
        (pen.Ragged.from_items(["a", "b"], dtype="u1", kind="text"), "'x' holds text, .*drop it in transform="),
        (pen.Ragged.from_items([b"a", b"b"], dtype="u1", kind="bytes"), "'x' holds bytes, .*drop it in transform="),
        (np.ma.MaskedArray([1, 2], mask=[True, False]), r"'x' is masked, .*filled\(\), or drop it in transform="),
        (np.array(["a", "b"]), "'x' holds text, "),
        (np.array([b"a", b"b"]), "'x' holds bytes, "),
        ("a", "'x' holds text, "),
        (["a"], "'x.0' holds text, "),
        (np.array([None, 1]), "'x' holds object, "),
        (np.zeros(2, "M8[s]"), r"'x' holds datetime64\[s\], "),
        (np.zeros(2, "m8[s]"), r"'x' holds timedelta64\[s\], "),
        (np.zeros(2, [("a", "i4")]), r"'x' holds \[\('a', '<i4'\)\], "),
        (np.zeros(2, np.longdouble), "'x' holds float128, "),
    ],
)
def test_what_has_no_form_in_jax_is_named(leaf: Any, told: str) -> None:
    with pytest.raises(TypeError, match=f"field {told}"):
        first(np.zeros(4), transform=lambda batch: {"x": leaf})


def test_ragged_and_masked_fields_of_a_source_are_mended_in_a_transform() -> None:
    data = {"text": ["ab", "c", "", "def"], "n": np.arange(4)}
    with pytest.raises(TypeError, match="field 'text' holds text"):
        first(data)
    found = first(data, transform=lambda batch: {"bytes": batch["text"].pad(3), "n": batch["n"]})
    assert np.asarray(found["bytes"]).tobytes() == b"ab\0c\0\0\0\0\0def"


# Shapes of batches and shardings


def test_batches_may_be_any_pytree() -> None:
    def nest(batch: Any, info: Any) -> Any:
        return ({"x": batch["x"], "step": info.step}, [batch["x"] * 2, None], np.float32(0.5))

    with deliver(make_loader(transform=nest)) as batches:
        inner, listed, half = next(batches)
    assert np.array_equal(listed[0], inner["x"] * 2)
    assert listed[1] is None
    assert (int(inner["step"]), float(half)) == (0, 0.5)
    assert inner["step"].sharding.is_fully_replicated


def test_shardings_by_field_name() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(1, 1), ("data", "model"))
    shardings = {"x": NamedSharding(mesh, P("data", "model")), "y": NamedSharding(mesh, P(("data", "model")))}
    data = pen.open({"x": np.zeros((8, 3)), "y": np.zeros(8)})
    with deliver(pen.Loader(data, 4), sharding=shardings) as batches:
        assert batches.sharding == shardings
        assert {name: array.sharding for name, array in next(batches).items()} == shardings
    with (
        deliver(pen.Loader(data, 4), sharding={"x": shardings["x"]}) as batches,
        pytest.raises(ValueError, match=r"no sharding is given for field 'y', only for \['x'\]"),
    ):
        next(batches)
    with (
        deliver(pen.Loader(data, 4), sharding=shardings["x"]) as batches,
        pytest.raises(ValueError, match="field 'y' has 1 dimensions, its sharding is for 2: name the first dimension only"),
    ):
        next(batches)


@pytest.mark.parametrize("wrong", [P("data"), {"x": None}, "data"])
def test_only_shardings_are_shardings(wrong: Any) -> None:
    with pytest.raises(TypeError, match="expected a jax Sharding, or a dict of them by field name, got "):
        deliver(make_loader(), sharding=wrong)


def test_a_single_device_is_a_sharding_too() -> None:
    device = jax.devices()[0]
    with deliver(make_loader(), sharding=jax.sharding.SingleDeviceSharding(device)) as batches:
        assert next(batches)["x"].devices() == {device}


# Training


@jax.jit
def train_step(weights: jax.Array, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    def loss_of(weights: jax.Array) -> jax.Array:
        return jnp.mean((batch["x"] @ weights - batch["y"]) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(weights)
    return weights - 0.1 * gradient, loss


def make_regression() -> pen.Loader:
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 4)).astype("f4")
    return pen.Loader(pen.open({"x": x, "y": x @ np.arange(4, dtype="f4")}).shuffle(seed=1), 8)


def test_three_epochs_of_training_stopped_and_resumed_end_in_the_same_weights() -> None:
    weights, losses = jnp.zeros(4), []
    with deliver(make_regression()) as batches:
        for _ in range(3):
            for batch in batches:
                weights, loss = train_step(weights, batch)
                losses.append(float(loss))
    assert len(losses) == 24
    assert losses[-1] < losses[0] / 100

    again = jnp.zeros(4)
    with deliver(make_regression(), forever=True) as batches:
        for batch in islice(batches, 11):
            again, _ = train_step(again, batch)
        state = json.dumps(batches.state_dict())
    with deliver(make_regression(), forever=True) as batches:
        batches.load_state_dict(json.loads(state))
        for batch in islice(batches, 13):
            again, _ = train_step(again, batch)
    assert again.tolist() == weights.tolist()


# Several devices, several processes


def start(*arguments: object, devices: int = 1) -> "subprocess.Popen[str]":
    """A fresh Python with so many CPU devices."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    command = [sys.executable, "-W", "error", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(processes: "list[subprocess.Popen[str]]") -> list[str]:
    """What the processes printed; all must end well, in time."""
    try:
        printed = [process.communicate(timeout=WAIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    for process, (_, errors) in zip(processes, printed, strict=True):
        assert process.returncode == 0, errors
    return [out for out, _ in printed]


def test_four_devices() -> None:
    assert finish([start(HERE / "jax_devices.py", devices=4)])[0].strip() == "all as expected"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("devices", every(2, [1, 2], 1))
def test_two_processes_share_a_batch_and_one_goes_on(devices: int, tmp_path: Path) -> None:
    port = free_port()
    finish([start(HERE / "jax_processes.py", rank, port, tmp_path, devices=devices) for rank in range(2)])
    seen = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]

    straight = make_loader(64, 8, tail="drop")
    expected = lists(straight) + lists(straight)
    assert len(seen[0]["own"]) == len(seen[1]["own"]) == 11
    for step, (one, other) in enumerate(zip(seen[0]["own"], seen[1]["own"], strict=True)):
        assert one == expected[step][0::2]
        assert other == expected[step][1::2]
        assert seen[0]["all"][step] == seen[1]["all"][step] == one + other

    assert seen[0]["state"] == seen[1]["state"]
    with deliver(make_loader(64, 8, tail="drop"), forever=True) as batches:
        batches.load_state_dict(seen[0]["state"])
        assert lists(islice(batches, 5)) == expected[11:16]


if is_campaign():

    def test_the_example_is_killed_and_resumed_with_the_same_data() -> None:
        printed = finish([start("examples/train_jax.py")])[0]
        assert "killed" in printed
        assert "identical" in printed
