"""penstock: training data for PyTorch and JAX, every batch a pure function of (data, seed, step).

The public surface is small; see the reference for the whole of it:

* ``open``              anything that holds records, as a ``Source``; a store for writing
* ``create``, ``convert``, ``rebalance``, ``verify``, ``gc``   the record store; ``penstock.store`` has the writer and ``stats``
* ``Source``, ``Stream``, ``Loader``, ``mix``    records, records in an order, batches; ``penstock.stream`` has the kinds of streams
* ``penstock.order``    pure arithmetic: (seed, epoch, position) -> record id
* ``penstock.errors``   everything penstock raises that is not a plain ValueError, TypeError or IndexError
* ``penstock.source``   writers of foreign formats
* ``penstock.deliver``  to torch and jax; ``penstock.cluster``  conversion on Ray; ``penstock.report``  measurements and plots
* ``penstock.testing``  conformance suites for your own orders and sources
"""

from penstock import source as source
from penstock import version1 as version1
from penstock.batch import Ragged
from penstock.conversion.convert import convert
from penstock.errors import PenstockError
from penstock.formats.open import open
from penstock.loader import Loader, verify_resume
from penstock.order import Phase, Shard
from penstock.records import Source
from penstock.store import LZ4, Deflate, Field, Raw, Zstd, create, gc, rebalance, train_dictionary, verify
from penstock.stream import Stream, mix

__all__ = [
    "LZ4",
    "Deflate",
    "Field",
    "Loader",
    "PenstockError",
    "Phase",
    "Ragged",
    "Raw",
    "Shard",
    "Source",
    "Stream",
    "Zstd",
    "convert",
    "create",
    "gc",
    "mix",
    "open",
    "rebalance",
    "train_dictionary",
    "verify",
    "verify_resume",
]
__version__ = "0.2.0.dev0"
