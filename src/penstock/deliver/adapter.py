"""What adapters to trainers share: checks of packages, fields and loaders, an engine that sends batches ahead, and packed batches
in the forms that models take.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loader import Loader
from penstock.loader.engine import Engine
from penstock.loader.schedule import Place

__all__ = [
    "IGNORED",
    "OneAhead",
    "check_fields",
    "check_loader",
    "document_lengths",
    "for_evaluation",
    "for_training",
    "importing",
    "padding_free",
    "with_bounds",
]


@contextmanager
def importing(what: str, line: str, *packages: str) -> Iterator[None]:
    """Around imports of ``packages``: ImportError with the line that installs them where they are missing.

    What a package itself lacks is told as it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in packages:
            raise
        raise ImportError(f"{what}: {line}") from error


def check_fields(what: str, found: Collection[str], needed: Sequence[str], also: str = "") -> None:
    """ValueError if packs lack fields; ``also``: further arguments of ``pack``."""
    missing = [name for name in needed if name not in found]
    if missing:
        raise ValueError(f"the {what} has no field {', '.join(missing)}: use pack(..., fields={tuple(needed)}{also})")


def check_loader(loader: Any) -> Loader:
    """The loader; TypeError if it is something else."""
    if not isinstance(loader, Loader):
        raise TypeError(f"expected a penstock Loader, got {type(loader).__name__}")
    return loader


def for_training(loader: Loader) -> Loader:
    """The loader; ValueError if it would give the same batches again."""
    if loader.restart:
        raise ValueError("the loader has restart=True and would train on its first batches again: leave restart out")
    return loader


def for_evaluation(loader: Loader) -> Loader:
    """The loader; ValueError if every evaluation would use other records."""
    if not loader.restart:
        raise ValueError("a loader for evaluation needs restart=True: without it every evaluation would use other records")
    return loader


class OneAhead(Engine):
    """The batches of another engine on devices: ``put`` sends each one there while the one before is used. An error comes at its
    batch's turn.
    """

    def __init__(self, engine: Engine, put: Callable[[Any], Any]) -> None:
        self._engine, self._put = engine, put
        self._next: tuple[Place, Any] | Exception | None = None

    def take(self) -> tuple[Place, Any]:
        found = self._send() if self._next is None else self._next
        if isinstance(found, Exception):
            raise found
        self._next = self._send()
        return found

    def _send(self) -> tuple[Place, Any] | Exception:
        try:
            place, batch = self._engine.take()
            return place, self._put(batch)
        except Exception as error:  # the end is one, too
            return error

    def close(self) -> None:
        self._next = None
        self._engine.close()


IGNORED = -100
"""A label that does not count."""


def padding_free(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch of packs as one row: ``input_ids``, ``labels`` and ``position_ids`` of shape [1, rows * length]; a ``transform=``.

    Packs need the fields tokens, labels and position; with the field segment the padding of a row is one document. There is no
    attention mask: models tell documents apart where positions begin at 0. Their loss compares a token with the label behind it, so
    labels are moved by one; that of a document's first token is -100.

    >>> import penstock as pen
    >>> from penstock.deliver.huggingface import padding_free
    >>> packs = pen.open({"text": ["abc", "de"]}).in_order().pack(5, fields=("tokens", "labels", "position"))
    >>> next(iter(pen.Loader(packs, 1, transform=padding_free)))["labels"].tolist()
    [[-100, 98, 99, -100, -100]]
    """
    check_fields("batch", batch, ("tokens", "labels", "position"))
    labels = np.full((1, batch["labels"].size), IGNORED, np.int64)
    labels[0, 1:] = batch["labels"].reshape(-1)[:-1]
    position = batch["position"].astype(np.int64)
    if "segment" in batch:  # then padding is one document, not many of one token
        padding = batch["segment"] < 0
        position[padding] = (np.cumsum(padding, axis=1) - 1)[padding]
    return {"input_ids": batch["tokens"].reshape(1, -1).astype(np.int64), "labels": labels, "position_ids": position.reshape(1, -1)}


def with_bounds(batch: Mapping[str, Any]) -> dict[str, Any]:
    """:func:`padding_free`, and where documents begin: ``cu_seq_lens_q``, ``cu_seq_lens_k``, ``max_length_q``, ``max_length_k``.

    For attention of varying length (flash attention), which then need not look for them in ``position_ids``.
    """
    flat = padding_free(batch)
    starts = np.flatnonzero(flat["position_ids"][0] == 0)
    bounds = np.append(starts, flat["position_ids"].size).astype(np.int32)
    longest = int(np.diff(bounds).max())
    return {**flat, "cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds.copy(), "max_length_q": longest, "max_length_k": longest}


def document_lengths(segment: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int32]:
    """The documents of every row, 0 where a row has fewer than another. The padding of a row is one, too.

    >>> import numpy as np
    >>> document_lengths(np.array([[0, 0, 1, -1], [0, 0, 0, 0]])).tolist()
    [[2, 1, 1], [4, 0, 0]]
    """
    rows, length = segment.shape
    starts = np.ones((rows, length), bool)
    starts[:, 1:] = segment[:, 1:] != segment[:, :-1]
    counts = starts.sum(axis=1)
    lengths = np.zeros((rows, int(counts.max(initial=0))), np.int32)
    lengths[np.arange(lengths.shape[1]) < counts[:, None]] = np.diff(np.flatnonzero(starts), append=starts.size)
    return lengths
