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

from penstock.library import MODULES

if TYPE_CHECKING:
    from penstock import source as source
    from penstock.batch import Ragged
    from penstock.conversion.convert import convert
    from penstock.errors import PenstockError
    from penstock.formats.open import open
    from penstock.loader import Loader, verify_resume
    from penstock.order import Balance, Phase, Shard
    from penstock.records import Source
    from penstock.remote.peers import Peers
    from penstock.run_plan import plan
    from penstock.schema import LZ4, Deflate, Field, Raw, Zstd, train_dictionary
    from penstock.store import add_field, create, gc, rebalance, verify
    from penstock.stream import Stream, load_mixture, mix
    from penstock.trace import LossLog

__all__ = [
    "LZ4",
    "Balance",
    "Deflate",
    "Field",
    "Loader",
    "LossLog",
    "Peers",
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


if not TYPE_CHECKING:  # a type checker must not take every name for one of ours

    def __getattr__(name: str) -> object:
        """What is used is imported then: ``import penstock`` itself takes a few milliseconds, a first batch what it needs."""
        if name in MODULES:
            globals()[name] = found = getattr(importlib.import_module(MODULES[name]), name)
            return found
        if not name.startswith("_") and importlib.util.find_spec(f"penstock.{name}") is not None:
            return importlib.import_module(f"penstock.{name}")
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
