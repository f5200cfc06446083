"""Writes images.json, golden boxes and weights, from the pure-Python reference and never from the native code.

    python -m tests.golden.make_images        (from the root of the repository)

A change of any value is a change of the pictures of every user.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.image import reference
from tests.image.reference import Crop

PATH = Path(__file__).with_name("images.json")

CROPS = (
    Crop(),
    Crop(scale=(0.35, 1.0), ratio=(0.9, 1.1), flip=0.25, size=(160, 160)),
    Crop(scale=(0.9, 1.0), ratio=(2.0, 3.0), flip=1.0, size=(96, 64)),
    Crop("center", fraction=0.875),
    Crop("center", flip=0.0, size=(320, 200)),
    Crop("none"),
)
SIZES = ((500, 375), (375, 500), (1920, 1280), (224, 224), (1, 1), (2, 900), (65_535, 3))
SEEDS = (0, 1, 2**63 + 5, 2**64 - 1)
RANGES = ((0, 10, 1, 4), (3, 7, 1, 7), (5, 9, 2, 3), (11, 100, 4, 17), (2, 5, 1, 12), (1, 1, 8, 3))


def golden() -> dict[str, Any]:
    """Everything that never changes."""
    return {
        "boxes": [
            {"crop": asdict(crop), "size": size, "boxes": [reference.box_of(crop, *size, seed) for seed in SEEDS]}
            for crop in CROPS
            for size in SIZES
        ],
        "seeds": [str(seed) for seed in SEEDS],
        "insides": [[*size, 96, 64, *reference.fit_inside(*size, 96, 64)[:4]] for size in SIZES],
        "weights": [{"range": one, "weights": reference.weights_of(*one)} for one in RANGES],
        "log": {str(x): reference.log(x).hex() for x in (0.001, 0.75, 4 / 3, 3.0, 1000.0)},
        "exp": {str(x): reference.exp(x).hex() for x in (-6.5, -0.2876, 0.0, 0.28, 6.5)},
    }


if __name__ == "__main__":
    PATH.write_text(json.dumps(golden()) + "\n")
