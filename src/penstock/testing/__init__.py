"""Conformance suites: inherit one in a test of your own order, source or loader. It checks every promise that others rely on.

They need pytest. ``penstock.testing.strategies`` needs hypothesis, and is imported only by name.
"""

from penstock.testing.order_suite import OrderSuite
from penstock.testing.source_suite import ResumeSuite, SourceSuite

__all__ = ["OrderSuite", "ResumeSuite", "SourceSuite"]
