"""Conformance suites: inherit one in a test of your own order and it checks every promise the layers above rely on.

``OrderSuite`` needs pytest. ``penstock.testing.strategies`` needs hypothesis, and is imported only by name.
"""

from penstock.testing.order_suite import OrderSuite

__all__ = ["OrderSuite"]
