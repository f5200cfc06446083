"""penstock: training data for PyTorch and JAX, every batch a pure function of (data, seed, step).

The public surface is small; see the reference for the whole of it:

* ``penstock.order``    pure arithmetic: (seed, epoch, position) -> record id
* ``penstock.errors``   everything penstock raises that is not a plain ValueError, TypeError or IndexError
* ``penstock.testing``  conformance suites for your own orders
"""

from penstock.errors import PenstockError
from penstock.order import Phase, Shard

__all__ = ["PenstockError", "Phase", "Shard"]
__version__ = "0.1.0"
