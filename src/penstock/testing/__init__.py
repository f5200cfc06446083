"""Conformance suites: inherit one in a test of your own order or source and it checks every promise the layers above rely on.

They need pytest. ``penstock.testing.strategies`` needs hypothesis, and is imported only by name.
"""

from penstock.testing.order_suite import OrderSuite
from penstock.testing.source_suite import SourceSuite

__all__ = ["OrderSuite", "SourceSuite"]
