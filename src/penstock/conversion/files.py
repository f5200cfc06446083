"""Row and token files: one field of a source, and for tokens that a tokenizer made what other tools want next to them.

The name of a file says what it is. ``x.ds`` of texts gets an ``x.ds.metadata`` that names the tokenizer, and ``x.ds.loss`` if there
is a loss mask; that of ``x.npy`` is ``labels_mask_x.npy``, a byte of 0 or 1 for every token, as OLMo's trainers have it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.batch import Batch, Ragged, unmasked
from penstock.conversion.reading import read_spans
from penstock.conversion.text import LOSS_MASK, TOKENS, TextMap
from penstock.errors import SchemaMismatchError
from penstock.formats.documents_writer import check_dtype, files_of, write_documents
from penstock.formats.publish import NewFile
from penstock.formats.rows import write_rows
from penstock.formats.tokens_writer import write_tokens
from penstock.progress import Progress
from penstock.records import Source
from penstock.schema import Field
from penstock.system import is_there
from penstock.tokenizer import TextTokenizer

__all__ = ["DOCUMENTS", "MASKED", "ONE_FIELD", "Converted", "FileForm", "check_one_field", "count_tokens", "write_one_field"]

BATCH_BYTES = 32 << 20
DOCUMENTS = (".idx", ".ds", ".bin")
ONE_FIELD = (".shard", ".rox", *DOCUMENTS)
MASKED = (".ds", ".npy")
"""Of texts: those that can have a loss mask. .npy is OLMo's, which only texts become."""
COUNTED = 1 << 20
"""Documents that are counted at a time."""


@dataclass(frozen=True)
class Converted:
    """What a conversion wrote: records, which are documents where they are tokens, and then how many tokens, of how many bytes, and
    how many of them count in the loss, if there is a mask.
    """

    records: int
    tokens: int | None = None
    token_bytes: int | None = None
    loss_tokens: int | None = None


@dataclass(frozen=True)
class FileForm:
    """What a row or token file is made of: one field, and for texts what goes next to it."""

    path: Path
    field: str
    dtype: np.dtype[Any]
    tokenizer: TextTokenizer | None
    has_mask: bool

    @classmethod
    def of(cls, path: Path, fields: Mapping[str, Field], made_by: object) -> "FileForm":
        """ValueError if the fields do not fit the file."""
        tokenizer = made_by.tokenizer if isinstance(made_by, TextMap) else None
        names = [name for name in fields if tokenizer is None or name != LOSS_MASK]
        check_one_field(path, names, fields)
        dtype = fields[names[0]].dtype
        if tokenizer is not None and path.suffix == ".idx" and dtype.itemsize == 4:
            dtype = np.dtype("<i4")  # Megatron has no other type of 4 bytes
        if path.suffix in (*DOCUMENTS, *MASKED):
            check_dtype(path, dtype)
        return cls(path, names[0], dtype, tokenizer, len(names) < len(fields))

    @property
    def files(self) -> list[Path]:
        """All that is written, the target last."""
        made = files_of(self.path) if self.path.suffix in (*DOCUMENTS, *MASKED) else [self.path]
        mask = [self.path.with_name(self.mask)] if self.has_mask else []
        about = [self.path.with_name(f"{self.path.name}.metadata")] if self._says_tokenizer else []
        return [*mask, *about, *made]

    @property
    def mask(self) -> str:
        """The name of the file with the loss mask: datatrove's, or one as OLMo's trainers have it."""
        return f"{self.path.name}.loss" if self.path.suffix == ".ds" else f"labels_mask_{self.path.name}"

    @property
    def _says_tokenizer(self) -> bool:
        return self.tokenizer is not None and self.path.suffix == ".ds"

    def write(self, source: Source, path: Path, separator: object, counts: Converted) -> None:
        """Write the files next to each other; none of them appears under its name."""
        write_one_field(source, path, self.field, self.dtype, separator, None)
        if not is_there(path):
            return
        if self.has_mask:
            file = NewFile(path.with_name(self.mask))
            for batch in read_spans(source, [LOSS_MASK], range(len(source)), BATCH_BYTES, as_columns=False):
                masks = _whole(path, LOSS_MASK, batch)
                file.write(masks.values[masks.offsets[0] : masks.offsets[-1]])
            file.finish()
        if self._says_tokenizer and self.tokenizer is not None:
            file = NewFile(path.with_name(f"{path.name}.metadata"))
            file.write(_about_tokens(self.tokenizer, self.dtype, counts.tokens or 0))
            file.finish()


def _about_tokens(tokenizer: TextTokenizer, dtype: np.dtype[Any], tokens: int) -> bytes:
    """The metadata of datatrove: the tokenizer as it was named, and behind what datatrove writes its digest."""
    digest = f"sha256:{tokenizer.sha256}"
    name = digest if tokenizer.name is None or set("|\r\n") & set(tokenizer.name) else tokenizer.name
    steps = min(3, (len(str(tokens)) - 1) // 3)
    size = f"{tokens / 1000**steps:.3g} {'kMG'[steps - 1] if steps else ''}T"
    return f"{name}|{dtype.itemsize}\n{tokens}\n{size}\n{digest}".encode()


def count_tokens(made: Source) -> Converted:
    """How many documents and tokens there are."""
    tokens = sum(
        int(np.sum(made.lengths(TOKENS, np.arange(low, min(low + COUNTED, len(made)))))) for low in range(0, len(made), COUNTED)
    )
    counted = None
    if LOSS_MASK in made.schema:
        spans = read_spans(made, [LOSS_MASK], range(len(made)), BATCH_BYTES, as_columns=False)
        counted = sum(int(np.count_nonzero(batch[LOSS_MASK].values)) for batch in spans)
    return Converted(len(made), tokens, tokens * made.schema[TOKENS].dtype.itemsize, counted)


def check_one_field(path: Path, names: Sequence[str], schema: Mapping[str, Field]) -> None:
    """ValueError if a file has no place for these fields."""
    if len(names) != 1:
        raise ValueError(f"{path}: such a file has one field, the source has {list(names)}: choose one with fields=[...]")
    field = schema[names[0]]
    if path.suffix != ".shard" and field.is_fixed and len(field.shape) != 1:
        raise ValueError(f"{path}: tokens have one dimension, field {names[0]!r} is {field!r}")
    if path.suffix == ".shard" and not (field.is_fixed and len(field.shape) == 1):
        raise ValueError(f"{path}: rows have one dimension and one width, field {names[0]!r} is {field!r}")


def write_one_field(
    source: Source, path: Path, name: str, dtype: np.dtype[Any], separator: object, report: Progress | None
) -> None:
    """Write a field as the name of the file says; no file for no tokens at all."""
    batches = read_spans(source, [name], range(len(source)), BATCH_BYTES, as_columns=False)
    if path.suffix == ".shard":
        write_rows((_whole(path, name, batch) for batch in batches), path, progress=report)
        return
    documents = (_as_documents(_whole(path, name, batch)) for batch in batches)
    if path.suffix in (*DOCUMENTS, *MASKED):
        write_documents(documents, path, dtype=dtype, separator=separator, progress=report)
    else:
        write_tokens(documents, path, dtype=dtype, separator=separator, progress=report)


def _as_documents(column: Any) -> Ragged:
    """Rows of one width as documents."""
    if isinstance(column, Ragged):
        return column
    return Ragged(column.reshape(-1), np.arange(len(column) + 1, dtype=np.int64) * column.shape[1])


def _whole(path: Path, name: str, batch: Batch) -> Any:
    """A column for a file that has no place for missing values."""
    column = unmasked(batch[name])
    is_missing = column.present is not None and not column.present.all() if isinstance(column, Ragged) else False
    if is_missing or isinstance(column, np.ma.MaskedArray):
        raise SchemaMismatchError(f"{path}: field {name!r} has missing records, which such a file cannot hold: select the others")
    return column
