"""Lines of tokens in plain lists, and token sources on disk."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as pen
from penstock.formats.tokens_writer import write_tokens
from penstock.order import Order, Shuffle
from penstock.records import Source


def make_tokens(directory: Path, count: int, page: int, *, dtype: str = "uint32", shards: str | None = None) -> Source:
    """Tokens 0, 1, 2, ... in pages of that size."""
    path = directory / f"tokens-{count}-{page}-{dtype}.rox"
    write_tokens([np.arange(count, dtype=dtype)], path, block_size=page, max_shard_bytes=shards)
    return pen.open(path if shards is None else str(path).removesuffix(".rox") + "_*.rox")


def naive_line(tokens: Any, page: int, order: Order, epoch: int) -> list[Any]:
    """The line of an epoch: full pages in their order, the rest last."""
    tokens = list(tokens)
    page = max(1, min(page, len(tokens)))
    full = len(tokens) // page
    line: list[Any] = []
    for number in order.indices(epoch, 0, full).tolist():
        line += tokens[number * page : (number + 1) * page]
    return line + tokens[full * page :]


def shuffled_line(tokens: Any, page: int, seed: int, epochs: int) -> list[Any]:
    """The lines of several epochs one after the other."""
    order = Shuffle(len(tokens) // max(1, min(page, len(tokens))), seed=seed)
    return [token for epoch in range(epochs) for token in naive_line(tokens, page, order, epoch)]


def naive_documents(row: npt.NDArray[Any], separator: list[int]) -> tuple[list[int], list[int]]:
    """Segment and position of every token: a document ends with the separator."""
    segment, position, number, place = [], [], 0, 0
    for i in range(len(row)):
        segment.append(number)
        position.append(place)
        place += 1
        if place >= len(separator) and list(row[i + 1 - len(separator) : i + 1]) == separator:
            number, place = number + 1, 0
    return segment, position
