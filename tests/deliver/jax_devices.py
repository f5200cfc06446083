"""Run with four CPU devices by test_jax.py: every device holds its rows, and batches that cannot be divided are refused."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import penstock as pen
from penstock.deliver.jax import deliver

DATA = {"x": np.arange(240).reshape(40, 6), "y": np.arange(40)}


def make_loader(batch_size: int | None = 8, **options: Any) -> pen.Loader:
    return pen.Loader(pen.open(DATA).shuffle(seed=7), batch_size, **options)


def refuses(told: str, act: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=told):
        act()


def rows_on_their_devices() -> None:
    with deliver(make_loader()) as batches:
        for batch, expected in zip(batches, make_loader(), strict=True):
            for name in DATA:
                assert np.array_equal(batch[name], expected[name])
                assert len(batch[name].addressable_shards) == 4
                for shard in batch[name].addressable_shards:
                    own = slice(shard.device.id * 2, shard.device.id * 2 + 2)
                    assert np.array_equal(shard.data, expected[name][own])


def rows_and_columns_of_a_mesh() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
    shardings = {"x": NamedSharding(mesh, P("data", "model")), "y": NamedSharding(mesh, P("data"))}
    expected = next(iter(make_loader(6)))
    with deliver(make_loader(6, tail="drop"), sharding=shardings) as batches:
        batch = next(batches)
    for name, shape in (("x", (3, 3)), ("y", (3,))):
        assert np.array_equal(batch[name], expected[name])
        assert {shard.data.shape for shard in batch[name].addressable_shards} == {shape}
    split = {"x": NamedSharding(mesh, P(None, ("data", "model"))), "y": shardings["y"]}
    refuses(r"field 'x': .*dimension size is 6", lambda: next(deliver(make_loader(), sharding=split)))


def batches_that_cannot_be_divided() -> None:
    refuses(
        r"a batch of 10 samples cannot be divided into 4 equal parts: use a batch_size that is a multiple of 4",
        lambda: deliver(make_loader(10)),
    )
    short = r"a batch of {} samples .* the last batch of an epoch is a short one, use tail='drop', 'pad' or 'wrap'"
    loader = pen.Loader(pen.open(DATA).select(slice(0, 37)), 8)
    refuses(short.format(5), lambda: deliver(loader))
    for tail in ("drop", "pad", "wrap"):
        with deliver(pen.Loader(pen.open(DATA).select(slice(0, 37)), 8, tail=tail)) as batches:
            assert {len(batch["y"]) for batch in batches} == {8}
    phases = [pen.Phase(2, batch_size=8), pen.Phase(2, batch_size=6)]
    refuses("a batch of 6 samples .* multiple of 4 in every phase", lambda: deliver(make_loader(None, phases=phases)))
    refuses("a batch of 6 samples .* multiple of 8", lambda: deliver(make_loader(12, shard=pen.Shard(0, 2))))

    # A state may lead to where the last batch is a short one.
    with deliver(make_loader()) as batches:
        other = make_loader(5)
        other.seek(1)
        batches.load_state_dict(other.state_dict())
        refuses(short.format(3), lambda: next(batches))


def transforms_may_change_the_number_of_rows() -> None:
    with deliver(make_loader(10, transform=lambda batch: {"x": np.repeat(batch["x"], 2, axis=0)})) as batches:
        assert next(batches)["x"].shape == (20, 6)
    with deliver(make_loader(8, transform=lambda batch: {"x": batch["x"][:7]})) as batches:
        refuses("field 'x': 7 rows cannot be divided into 4 equal parts: choose another batch_size", lambda: next(batches))


def scalars_are_everywhere() -> None:
    with deliver(make_loader(transform=lambda batch, info: {**batch, "step": info.step})) as batches:
        batch = next(batches)
    assert batch["step"].sharding.is_fully_replicated
    assert len(batch["step"].addressable_shards) == 4
    assert batch["y"].sharding.spec == P("data")


def a_jitted_step_needs_nothing_else() -> None:
    @jax.jit
    def mean(total: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
        return total + jnp.mean(batch["x"])

    total = jnp.zeros(())
    with deliver(make_loader()) as batches:
        for _ in range(3):
            for batch in batches:
                total = mean(total, batch)
    assert abs(float(total) / 15 - DATA["x"].mean()) < 1e-3


if __name__ == "__main__":
    assert jax.device_count() == 4
    rows_on_their_devices()
    rows_and_columns_of_a_mesh()
    batches_that_cannot_be_divided()
    transforms_may_change_the_number_of_rows()
    scalars_are_everywhere()
    a_jitted_step_needs_nothing_else()
    sys.stdout.write("all as expected\n")
