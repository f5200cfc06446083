"""The compiled module. It is imported here only, by name, because tools that read source files cannot see it."""

from importlib import import_module

__all__ = ["_core"]

_core = import_module("penstock._core")
