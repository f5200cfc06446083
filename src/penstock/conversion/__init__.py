"""Anything that can be opened into a store, rows or tokens."""
