"""Orders beside real JAX: ids go through DLPack, and the same ids come out of a jitted gather."""

import jax
import jax.numpy as jnp
import numpy as np

from penstock.order import Cursor, Shuffle


def test_ids_enter_jax_unchanged() -> None:
    ids = Shuffle(10**6, seed=1).indices(0, 0, 512)
    with jax.enable_x64(True):
        array = jnp.asarray(ids)
        assert array.dtype == jnp.int64
        assert np.array_equal(np.asarray(array), ids)


def test_ids_gather_under_jit() -> None:
    data = jnp.arange(5000) * 3
    ids = Shuffle(5000, seed=4).indices(2, 0, 5000).astype(np.int32)
    gathered = jax.jit(lambda x, i: x[i])(data, ids)
    assert np.array_equal(np.sort(np.asarray(gathered)), np.asarray(data))


def test_cursor_state_is_a_pytree_of_integers() -> None:
    state = Cursor(seed=7, epoch=1, position=99).state_dict()
    leaves, structure = jax.tree.flatten(state)
    assert all(type(leaf) is int for leaf in leaves)
    assert Cursor.from_state_dict(jax.tree.unflatten(structure, leaves)) == Cursor(7, 1, 99)
