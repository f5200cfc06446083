"""Writes sequences.json: which tokens are in the sequences of order version 2. ``python -m tests.golden.make_sequences``

The values never change; a better order is a new version. What they are follows from docs/reference/order.md, which
tests/stream and tests/crossing compare with plain lists.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.stream.tokens import make_tokens

from penstock.formats.array import ArraySource
from penstock.records import Source
from penstock.stream import SequenceStream

PATH = Path(__file__).parent / "sequences.json"
LENGTHS = [(7 * i * i + 3 * i) % 41 for i in range(3000)]
BANNED = list(range(0, 200, 13))


def streams(tokens: Source, documents: Source) -> dict[str, SequenceStream]:
    """Sequences of every kind."""
    return {
        "tokens, in order": tokens.in_order().sequences(100),
        "tokens, shuffled": tokens.shuffle(seed=7).sequences(100),
        "tokens, larger pages": tokens.shuffle(seed=7).sequences(100, page=1000),
        "tokens, blocks": tokens.shuffle(seed=7, block=4, window=3, lanes=2).sequences(100),
        "tokens, drawn": tokens.sample(seed=7).sequences(100),
        "tokens, banned": tokens.shuffle(seed=7).sequences(100).without(BANNED, from_step=1),
        "documents, in order": documents.in_order().sequences(100, documents=True),
        "documents, shuffled": documents.shuffle(seed=7).sequences(100, separator=0),
        "documents, blocks": documents.shuffle(seed=7, block=64, window=4).sequences(100),
        "documents, banned": documents.shuffle(seed=7).sequences(100).without(BANNED, from_step=1),
    }


def documents() -> Source:
    """Documents of 0 to 40 tokens."""
    return ArraySource({"text": ["x" * length for length in LENGTHS]})


def runs_of(stream: SequenceStream) -> list[list[Any]]:
    """The runs of tokens of some sequences: [epoch, position, step, [[first token, number of tokens], ...]]."""
    found: list[list[Any]] = []
    for epoch, step in ((0, 0), (0, 1), (5, 1)):
        for position in (0, 100, stream.axis // 200 * 100, stream.axis - 50):
            picks = stream.locate(epoch, range(position, position + 1), step)
            found.append([epoch, position, step, [[int(a), int(n)] for a, n in zip(picks.starts, picks.counts, strict=True)]])
    return found


def make(directory: Path) -> dict[str, list[list[Any]]]:
    with make_tokens(directory, 50_000, 256, dtype="uint16") as tokens:
        return {name: runs_of(stream) for name, stream in streams(tokens, documents()).items()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        cases = make(Path(directory))
    rows = (f" {json.dumps(name)}: [\n  " + ",\n  ".join(map(json.dumps, rows)) + "\n ]" for name, rows in cases.items())
    PATH.write_text("{\n" + ",\n".join(rows) + "\n}\n")
