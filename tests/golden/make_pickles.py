"""Writes pickles-v1.json: pickles of streams and a loader, and their first batch, in base64 and as JSON.

``PYTHON_OF_1b547cd -m tests.golden.make_pickles``: the last commit in which modules and attributes had their old names.
"""

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np

import penstock as pen
from penstock import Loader
from penstock.stream import Stream

PATH = Path(__file__).parent / "pickles-v1.json"


def cases() -> dict[str, Stream | Loader]:
    """What is pickled."""
    numbers, texts = pen.open({"x": np.arange(12)}), pen.open({"text": ["abc", "de", "fghi", "jklmnop"]})
    loader = Loader(numbers.shuffle(seed=7), 4, threads=0, ids="id")
    next(iter(loader))
    return {
        "records": numbers.shuffle(seed=7).without([5]),
        "blocks": numbers.shuffle(seed=7, block=3),
        "documents": texts.shuffle(seed=1).without([1]).sequences(3, separator=0, documents=True),
        "mixture": pen.mix({"a": numbers.in_order(), "b": numbers.shuffle(seed=2)}, weights={"a": 1, "b": 3}, seed=3),
        "loader": loader,
    }


def first_batch(case: Stream | Loader) -> dict[str, Any]:
    """The first batch that is to come."""
    with case if isinstance(case, Loader) else Loader(case, 4, threads=0) as loader:
        return {name: column.tolist() for name, column in next(iter(loader)).items()}


if __name__ == "__main__":
    pickled = {name: pickle.dumps(case, protocol=4) for name, case in cases().items()}
    made = {
        name: {"pickle": base64.b64encode(data).decode(), "first": first_batch(pickle.loads(data))}
        for name, data in pickled.items()
    }
    PATH.write_text(json.dumps(made, indent=1) + "\n")
