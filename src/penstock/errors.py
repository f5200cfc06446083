"""Every exception penstock raises on purpose, grouped by what the caller does next.

::

    PenstockError                         catch this to catch them all
    ├── FullPassError                     (ValueError)  draw a designed sample, or ask for the full pass by name
    ├── StateError                        (ValueError)  a saved state cannot be used here; start anew or fix the pipeline
    ├── ReadError                         (OSError)     bytes could not be read; look at the disk
    │   ├── CorruptError                  (ValueError)  bytes are not what was written; restore the file or open an older generation
    │   │   └── TruncatedError                          a file was cut while it was read
    │   ├── MissingError                  (FileNotFoundError)  a store or one of its files is not there
    │   │   ├── NotPublishedError                       nothing was committed yet
    │   │   └── SnapshotExpiredError                    the generation was collected; open a newer one or keep more
    │   └── UnsupportedVersionError                     a newer penstock wrote this
    └── StoreError                        (OSError)     writing failed; what was committed is untouched
        ├── NoSpaceError                                free some space and commit again
        ├── StorePermissionError          (PermissionError)    get the right to write here
        ├── UnsupportedFilesystemError                  write on a local disk, then copy
        ├── DurabilityError                             the disk did not confirm; reopen the store to see what is there
        ├── LockedError                                 wait for the other writer
        ├── ConflictError                               another writer was first; reopen and write again
        └── ForkedWriterError                           open a writer in this process

Bad arguments raise the builtin ``ValueError``, ``TypeError`` or ``IndexError``. A message says what was expected, what was found,
and the remedy where there is one.
"""

__all__ = [
    "ConflictError",
    "CorruptError",
    "DurabilityError",
    "ForkedWriterError",
    "FullPassError",
    "LockedError",
    "MissingError",
    "NoSpaceError",
    "NotPublishedError",
    "PenstockError",
    "ReadError",
    "SnapshotExpiredError",
    "StateError",
    "StoreError",
    "StorePermissionError",
    "TruncatedError",
    "UnsupportedFilesystemError",
    "UnsupportedVersionError",
]


class PenstockError(Exception):
    """The root of the tree."""


class FullPassError(PenstockError, ValueError):
    """A full pass as an estimator over so many rows that a designed sample is the right tool."""


class StateError(PenstockError, ValueError):
    """A saved state that is damaged, from another version, or of another pipeline."""


class ReadError(PenstockError, OSError):
    """Bytes that could not be read."""


class CorruptError(ReadError, ValueError):
    """Bytes that are not what was written: a bad checksum, size or value."""


class TruncatedError(CorruptError):
    """A file that became shorter while it was read."""


class MissingError(ReadError, FileNotFoundError):
    """A store, or a file of it, that is not there."""


class NotPublishedError(MissingError):
    """A store in which nothing was committed yet."""


class SnapshotExpiredError(MissingError):
    """A generation that is no longer there."""


class UnsupportedVersionError(ReadError):
    """A file of a newer version, or with a feature this version does not know."""


class StoreError(PenstockError, OSError):
    """Writing failed; the last commit is untouched."""


class NoSpaceError(StoreError):
    """The disk or the quota is full. The transaction is gone; the writer can be used again."""


class StorePermissionError(StoreError, PermissionError):
    """The right to write is missing."""


class UnsupportedFilesystemError(StoreError):
    """A filesystem without what commits need."""


class DurabilityError(StoreError):
    """The disk did not confirm a write. The commit may or may not survive a power cut; the writer is given up."""


class LockedError(StoreError):
    """Another writer holds the store."""


class ConflictError(StoreError):
    """Another writer committed first."""


class ForkedWriterError(StoreError):
    """A writer used in a process that did not open it."""
