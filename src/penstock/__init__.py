"""penstock: training data for PyTorch and JAX, every batch a pure function of (data, seed, step).

The public surface is small; see the reference for the whole of it:

* ``open``              anything that holds records, as a ``Source``; a store for writing
* ``create``, ``convert``, ``add_field``, ``rebalance``, ``verify``, ``gc``   the record store; more of it in ``penstock.store``
* ``Source``, ``Stream``, ``Loader``, ``mix``    records, records in an order, batches; ``penstock.stream`` has the kinds of streams
* ``penstock.order``    pure arithmetic: (seed, epoch, position) -> record id
* ``penstock.errors``   everything penstock raises that is not a plain ValueError, TypeError or IndexError
* ``penstock.source``   writers of foreign formats
* ``LossLog``, ``penstock.trace``   the losses of a run, which records are to blame, and proof of what a run was given
* ``penstock.deliver``  to torch and jax; ``penstock.cluster``  conversion on Ray; ``penstock.report``  measurements and plots
* ``penstock.testing``  conformance suites for your own orders and sources
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING

from penstock import version1 as version1

if TYPE_CHECKING:
    from penstock import source as source
    from penstock.library import (
        LZ4,
        Balance,
        Deflate,
        Field,
        Loader,
        LossLog,
        PenstockError,
        Phase,
        Ragged,
        Raw,
        Shard,
        Source,
        Stream,
        Zstd,
        add_field,
        convert,
        create,
        gc,
        load_mixture,
        mix,
        open,
        plan,
        rebalance,
        train_dictionary,
        verify,
        verify_resume,
    )

__all__ = [
    "LZ4",
    "Balance",
    "Deflate",
    "Field",
    "Loader",
    "LossLog",
    "PenstockError",
    "Phase",
    "Ragged",
    "Raw",
    "Shard",
    "Source",
    "Stream",
    "Zstd",
    "add_field",
    "convert",
    "create",
    "gc",
    "load_mixture",
    "mix",
    "open",
    "plan",
    "rebalance",
    "train_dictionary",
    "verify",
    "verify_resume",
]
__version__ = "0.2.0.dev0"  # the one place: pyproject.toml reads it here


def _load() -> None:
    """Import the library. ``import penstock`` itself takes a few milliseconds: a program that may use it starts quickly."""
    library = importlib.import_module("penstock.library")
    globals().update({name: getattr(library, name) for name in __all__})


if not TYPE_CHECKING:  # a type checker must not take every name for one of ours

    def __getattr__(name: str) -> object:
        if name in __all__:
            _load()
            return globals()[name]
        if not name.startswith("_") and importlib.util.find_spec(f"penstock.{name}") is not None:
            return importlib.import_module(f"penstock.{name}")
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
