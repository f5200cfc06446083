"""A tokenizer of the tokenizers package: loaded once, texts to token ids in batches, ids to text, and what it is known by.

The package is imported when a tokenizer is loaded. Its own threads encode a batch, without the interpreter's lock.
"""

import hashlib
import os
from array import array
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, shown, whole_number
from penstock.batch import Ragged
from penstock.errors import FormatError, MissingError
from penstock.process import need
from penstock.system import is_directory, is_there, reading

__all__ = ["EXTRA", "FILE_NAME", "TextTokenizer", "TokenizerLike", "load_tokenizer"]

EXTRA = "text"
"""What is installed with ``pip install 'penstock[text]'``."""

FILE_NAME = "tokenizer.json"

TokenizerLike: TypeAlias = Any
"""The path of a tokenizer.json, or of a directory with one; a ``tokenizers.Tokenizer``; a fast tokenizer of transformers."""

SMALL_VOCABULARY = 1 << 16


def load_tokenizer(what: TokenizerLike) -> "TextTokenizer":
    """The tokenizer of a file, a directory or an object. Nothing is fetched from a network.

    ImportError without the tokenizers package, MissingError without the file, FormatError for a file that is no tokenizer.
    """
    if isinstance(what, TextTokenizer):
        return what
    library = need("tokenizers", EXTRA)
    if isinstance(what, str) and "://" in what:
        raise ValueError(f"tokenizer: expected the path of a {FILE_NAME} on this machine, got the URL {what}: copy it to a disk")
    if isinstance(what, str | os.PathLike):
        return _from_file(library, Path(what), os.fspath(what))
    found = getattr(what, "backend_tokenizer", what)
    if not isinstance(found, library.Tokenizer):
        raise TypeError(f"expected the path of a {FILE_NAME} or a tokenizers.Tokenizer, got {shown(what)}")
    try:
        text = found.to_str()
    except Exception as error:  # the package has no other
        raise TypeError(f"expected a tokenizer that can be saved as JSON, got one that cannot: {error}") from error
    return TextTokenizer(library.Tokenizer.from_str(text), keeps_special_text=bool(found.encode_special_tokens))


def _from_file(library: Any, path: Path, name: str) -> "TextTokenizer":
    file = path / FILE_NAME if is_directory(path) else path
    if not is_there(file):
        raise MissingError(
            f"{file}: expected a {FILE_NAME}, found nothing; one of the Hugging Face hub is "
            "tokenizers.Tokenizer.from_pretrained(name)"
        )
    with reading(file):
        raw = file.read_bytes()
    try:
        tokenizer = library.Tokenizer.from_buffer(raw)
    except Exception as error:  # the package has no other
        raise FormatError(
            f"{file}: expected the JSON of a tokenizer, found something else ({' '.join(str(error).split())})"
        ) from error
    return TextTokenizer(tokenizer, name=name)


class TextTokenizer:
    """A private copy of a ``tokenizers.Tokenizer``. The truncation and padding that its JSON may ask for are not done:
    documents are encoded whole.

    Safe to use from several threads; pickled, it is its JSON. ``keeps_special_text`` is the ``encode_special_tokens`` of the
    package: special tokens that a text spells out are encoded as text. ``name`` is the path that it was loaded from, as given.
    """

    def __init__(self, tokenizer: Any, *, keeps_special_text: bool = False, name: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = keeps_special_text
        self.keeps_special_text, self.name = keeps_special_text, name

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.text, self.keeps_special_text, self.name)

    def __repr__(self) -> str:
        return f"TextTokenizer(vocab_size={self.vocab_size}, sha256={self.sha256[:12]!r})"

    @cached_property
    def text(self) -> str:
        """The tokenizer as JSON."""
        return str(self._tokenizer.to_str())

    @cached_property
    def sha256(self) -> str:
        """What the tokenizer is known by: the digest of its JSON as the package writes it, without truncation and padding."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its ids: 2 bytes for fewer than 65,536, else 4."""
        return np.dtype("<u2" if self.vocab_size < SMALL_VOCABULARY else "<u4")

    def about(self) -> dict[str, Any]:
        """What data that it made says of it."""
        return {"sha256": self.sha256, "vocab_size": self.vocab_size}

    def token_id(self, token: str | int) -> int:
        """The id of a token by its name, or the id itself; ValueError if there is none."""
        if isinstance(token, str):
            found = self._tokenizer.token_to_id(token)
            if found is None:
                raise ValueError(f"expected a token of the tokenizer, got {token!r}, which is not in its vocabulary")
            return int(found)
        number = whole_number("token", token)
        if self._tokenizer.id_to_token(number) is None:
            raise ValueError(f"expected the id of a token, below {self.vocab_size}, got {number}")
        return number

    def encode(self, texts: Sequence[str], *, special_tokens: bool = True) -> Ragged:
        """The ids of texts, as ``encode`` of the package gives them; ``special_tokens`` are those that its post-processor adds."""
        found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=special_tokens)
        return self._ids(found)

    def encode_with_offsets(self, texts: Sequence[str]) -> tuple[Ragged, IntArray]:
        """The ids of texts, without those that the post-processor adds, and the characters [from, to) that each stands for."""
        found = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        offsets = array("q", (place for one in found for pair in one.offsets for place in pair))
        return self._ids(found), np.array(offsets, np.int64).reshape(-1, 2)

    def _ids(self, encodings: Sequence[Any]) -> Ragged:
        """Lists to arrays: array is three times as fast as numpy here, and 3 % of the time that encoding takes."""
        ids, ends = array("I"), array("q", [0])
        for one in encodings:
            ids.extend(array("I", one.ids))
            ends.append(len(ids))
        found = np.array(ids, np.uint32)
        if found.size and int(found.max()) >= self.vocab_size:
            raise ValueError(
                f"expected ids below {self.vocab_size}, those of the vocabulary, got {found.max()}, which the post-processor adds: "
                f"correct its ids in the {FILE_NAME}, or leave its tokens out with special_tokens=False"
            )
        return Ragged(found.astype(self.dtype), np.array(ends, np.int64))

    def decode(self, ids: npt.ArrayLike, *, skip_special_tokens: bool = False) -> str:
        """The text of ids. ValueError for one that is not in the vocabulary, which the package would leave out."""
        return self.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0]

    def decode_batch(self, documents: Sequence[npt.ArrayLike], *, skip_special_tokens: bool = False) -> list[str]:
        """The texts of several runs of ids."""
        runs = [self._known(np.asarray(ids)) for ids in documents]
        return [str(text) for text in self._tokenizer.decode_batch(runs, skip_special_tokens=skip_special_tokens)]

    def _known(self, ids: npt.NDArray[Any]) -> list[int]:
        if ids.size and (ids.dtype.kind not in "iu" or ids.ndim != 1):
            raise TypeError(f"expected ids of tokens in one dimension, got {ids.dtype} of shape {ids.shape}")
        if ids.size and not (int(ids.min()) >= 0 and int(ids.max()) < self.vocab_size):
            bad = int(ids[(ids < 0) | (ids >= self.vocab_size)][0])
            raise ValueError(f"expected ids below {self.vocab_size}, got {bad}: these are tokens of another tokenizer")
        return [int(one) for one in ids.tolist()]


@lru_cache(maxsize=2)  # a process gets it with every task, and making it can take a second
def _again(text: str, keeps_special_text: bool, name: str | None) -> TextTokenizer:
    return TextTokenizer(need("tokenizers", EXTRA).Tokenizer.from_str(text), keeps_special_text=keeps_special_text, name=name)
