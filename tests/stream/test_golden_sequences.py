"""Sequences of order version 2 stay what they are."""

import json
from pathlib import Path

import pytest
from tests.golden import make_sequences
from tests.stream.tokens import make_tokens

GOLDEN = json.loads(make_sequences.PATH.read_text())


@pytest.mark.parametrize("name", GOLDEN)
def test_sequences_hold_the_golden_runs_of_tokens(tmp_path: Path, name: str) -> None:
    with make_tokens(tmp_path, 50_000, 256, dtype="uint16") as tokens:
        stream = make_sequences.streams(tokens, make_sequences.documents())[name]
        assert make_sequences.runs_of(stream) == GOLDEN[name]


def test_every_kind_of_sequences_has_golden_values(tmp_path: Path) -> None:
    with make_tokens(tmp_path, 50_000, 256, dtype="uint16") as tokens:
        assert list(make_sequences.streams(tokens, make_sequences.documents())) == list(GOLDEN)
