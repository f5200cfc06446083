"""Every exception penstock raises on purpose, grouped by what the caller does next.

::

    PenstockError                 catch this to catch them all
    ├── FullPassError             (ValueError)  draw a designed sample, or ask for the full pass by name
    └── StateError                (ValueError)  a saved state cannot be used here; start anew or fix the pipeline

Bad arguments raise the builtin ``ValueError``, ``TypeError`` or ``IndexError``. A message says what was expected, what was found,
and the remedy where there is one.
"""

__all__ = ["FullPassError", "PenstockError", "StateError"]


class PenstockError(Exception):
    """The root of the tree."""


class FullPassError(PenstockError, ValueError):
    """A full pass as an estimator over so many rows that a designed sample is the right tool."""


class StateError(PenstockError, ValueError):
    """A saved state that is damaged, from another version, or of another pipeline."""
