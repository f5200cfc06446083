"""Every exception penstock raises on purpose, grouped by what the caller does next.

::

    PenstockError                         catch this to catch them all
    ├── FullPassError                     (ValueError)  draw a designed sample, or ask for the full pass by name
    ├── StateError                        (ValueError)  a saved state cannot be used here; start a new run, or fix the pipeline
    │   └── StateMismatchError                          the state is of other data or another order; the differences are listed
    ├── BatchError                        (RuntimeError)  a batch could not be made; step, records and cause are named
    │   └── WorkerDiedError                             a process that made batches is gone
    ├── ReadError                         (OSError)     bytes could not be read; look at the disk
    │   ├── CorruptError                  (ValueError)  bytes are not what was written; restore the file or open an older generation
    │   │   ├── TruncatedError                          a file is shorter than it says, or was cut while it was read
    │   │   ├── TrailingBytesError                      a file is longer than it says
    │   │   ├── SizeOverflowError                       a size in a file is beyond anything that can exist
    │   │   ├── EmptyFileError                          a file of no bytes
    │   │   ├── FormatError                             not a file of that kind: wrong magic or header
    │   │   └── ImageError                              a picture that cannot be decoded: damaged, cut, unknown or too large
    │   ├── MissingError                  (FileNotFoundError)  a store or one of its files is not there
    │   │   ├── NoMatchError                            a pattern or directory under which there is nothing
    │   │   ├── NotPublishedError                       nothing was committed yet
    │   │   └── SnapshotExpiredError                    the generation was collected; open a newer one or keep more
    │   ├── UnsupportedVersionError                     a newer penstock wrote this
    │   ├── BatchTooLargeError            (ValueError)  read fewer records at a time, or open with a larger max_batch_bytes
    │   ├── SourceChangedError                          the data is not what it was; open it again
    │   │   └── ObjectChangedError                      an object was replaced while it was read; open it again
    │   ├── StoreUnavailableError                       an object store did not answer in time, however often it was asked
    │   ├── AccessDeniedError             (PermissionError)    data that may not be read; look at the rights or credentials
    │   ├── WindowTooSmallError           (ValueError)  open with a larger window_bytes, or shuffle fewer blocks together
    │   ├── CacheTooSmallError            (ValueError)  open with a larger cache_bytes
    │   ├── UnsafePathError               (ValueError)  a name that leads out of its directory, or a redirect to another host
    │   ├── UnsafeDataError               (ValueError)  data that would have to be executed to be read (pickle)
    │   ├── UnsupportedTypeError          (TypeError)   an element type that records cannot have
    │   ├── CastError                     (ValueError)  a value does not fit the type it is cast to; cast to a wider one
    │   ├── SchemaMismatchError           (ValueError)  parts that do not fit together: other fields, types or widths
    │   └── EmptySourceError              (ValueError)  files without a single record, where the format forbids that
    └── StoreError                        (OSError)     writing failed; what was committed is untouched
        ├── NoSpaceError                                free some space and commit again
        ├── StorePermissionError          (PermissionError)    get the right to write here
        ├── UnsupportedFilesystemError                  write on a local disk, then copy
        ├── DurabilityError                             the disk did not confirm; reopen the store to see what is there
        ├── LockedError                                 wait for the other writer
        ├── OutcomeUnknownError                         the response to a write was lost; read it back to see
        ├── WriteRefusedError                           an object store does not do what it was asked to do
        ├── ConflictError                               another writer was first; reopen and write again
        └── ForkedWriterError                           open a writer in this process

Bad arguments raise the builtin ``ValueError``, ``TypeError`` or ``IndexError``. A message says what was expected, what was found,
and the remedy where there is one.
"""

__all__ = [
    "AccessDeniedError",
    "BatchError",
    "BatchTooLargeError",
    "CacheTooSmallError",
    "CastError",
    "ConflictError",
    "CorruptError",
    "DurabilityError",
    "EmptyFileError",
    "EmptySourceError",
    "ForkedWriterError",
    "FormatError",
    "FullPassError",
    "ImageError",
    "LockedError",
    "MissingError",
    "NoMatchError",
    "NoSpaceError",
    "NotPublishedError",
    "ObjectChangedError",
    "OutcomeUnknownError",
    "PenstockError",
    "ReadError",
    "SchemaMismatchError",
    "SizeOverflowError",
    "SnapshotExpiredError",
    "SourceChangedError",
    "StateError",
    "StateMismatchError",
    "StoreError",
    "StorePermissionError",
    "StoreUnavailableError",
    "TrailingBytesError",
    "TruncatedError",
    "UnsafeDataError",
    "UnsafePathError",
    "UnsupportedFilesystemError",
    "UnsupportedTypeError",
    "UnsupportedVersionError",
    "WindowTooSmallError",
    "WorkerDiedError",
    "WriteRefusedError",
]


class PenstockError(Exception):
    """The root of the tree."""


class FullPassError(PenstockError, ValueError):
    """A full pass as an estimator over so large a data set that a designed sample is the right tool."""


class StateError(PenstockError, ValueError):
    """A saved state that is damaged, from another version, or of another pipeline."""


class StateMismatchError(StateError):
    """A saved state of other data, or of another order."""


class BatchError(PenstockError, RuntimeError):
    """A batch that could not be made."""


class WorkerDiedError(BatchError):
    """A worker that is gone, with the batch it was making."""


class ReadError(PenstockError, OSError):
    """Bytes that could not be read."""


class CorruptError(ReadError, ValueError):
    """Bytes that are not what was written: a bad checksum, size or value."""


class TruncatedError(CorruptError):
    """A file that is shorter than it says, or became shorter while it was read."""


class TrailingBytesError(CorruptError):
    """A file that goes on behind its end."""


class SizeOverflowError(CorruptError):
    """A size, or a product of sizes, that no file can have."""


class EmptyFileError(CorruptError):
    """A file of no bytes."""


class FormatError(CorruptError):
    """A file of another kind than it was taken for."""


class ImageError(CorruptError):
    """A picture that cannot be decoded.

    ``reason`` says why. ``index`` is its number among those that were to be decoded together, or None.
    """

    def __init__(self, reason: str, index: int | None = None) -> None:
        super().__init__(reason if index is None else f"picture {index}: {reason}")
        self.reason = reason
        self.index = index

    def __reduce__(self) -> tuple[type["ImageError"], tuple[str, int | None]]:
        """As any exception: made anew of its arguments."""
        return type(self), (self.reason, self.index)


class MissingError(ReadError, FileNotFoundError):
    """A store, or a file of it, that is not there."""


class NoMatchError(MissingError):
    """A pattern, prefix or directory under which there is nothing to open."""


class NotPublishedError(MissingError):
    """A store in which nothing was committed yet."""


class SnapshotExpiredError(MissingError):
    """A generation that is no longer there."""


class UnsupportedVersionError(ReadError):
    """A file of a newer version, or with a feature this version does not know."""


class BatchTooLargeError(ReadError, ValueError):
    """More bytes than a batch may have."""


class SourceChangedError(ReadError):
    """Data that is not what it was when it was first opened."""


class ObjectChangedError(SourceChangedError):
    """An object that was replaced while it was read."""


class StoreUnavailableError(ReadError):
    """An object store that did not answer in time, after all tries."""


class AccessDeniedError(ReadError, PermissionError):
    """Data that may not be read: a file without the right to it, or an object store that refuses these credentials."""


class WindowTooSmallError(ReadError, ValueError):
    """More bytes of remote data are needed at once than the window may hold."""


class CacheTooSmallError(ReadError, ValueError):
    """A disk cache that cannot even hold what one read needs."""


class UnsafePathError(ReadError, ValueError):
    """A name that leads out of the directory, bucket or host it belongs to, or a redirect to another host."""


class UnsafeDataError(ReadError, ValueError):
    """Data that would have to be executed to be read."""


class UnsupportedTypeError(ReadError, TypeError):
    """An element type that records cannot have."""


class CastError(ReadError, ValueError):
    """A value that does not fit the type it is cast to."""


class SchemaMismatchError(ReadError, ValueError):
    """Parts of one source that do not fit together."""


class EmptySourceError(ReadError, ValueError):
    """Files without a single record, where their format forbids that."""


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


class OutcomeUnknownError(StoreError):
    """The answer to a write was lost: it may have landed or not. Read the key back to see."""


class WriteRefusedError(StoreError):
    """An object store that does not do what it was asked to do."""


class ConflictError(StoreError):
    """Another writer committed first."""


class ForkedWriterError(StoreError):
    """A writer used in a process that did not open it."""
