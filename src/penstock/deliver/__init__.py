"""Delivery: batches of a loader as what a framework takes; ``penstock.deliver.torch`` and ``penstock.deliver.jax``."""
