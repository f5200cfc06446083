"""Damaged pictures of every kind: an array, or an ImageError; the same from every level of the kernels.

    python -m tests.hostile.mutate_images --count N [--seed S]

Mutants are decoded with a limit of address space and a deadline each. What may not happen is a crash, a hang, an allocation beyond
reason, another exception, or levels that do not agree.
"""

import argparse
import collections
import signal
import sys
import zlib
from collections.abc import Iterator

import numpy as np
from tests.hostile.mutate import mutant
from tests.image.pictures import encoded, kinds
from tests.sanitized import limit_address_space, patience_s

from penstock import _core
from penstock.errors import ImageError

MAX_PIXELS = 1_000_000
MORE_BYTES = 400 << 20
DEADLINE_S = 10


def makers() -> Iterator[_core.ImageMaker]:
    """A few outputs, each made by plain code and by the best."""
    for level in (_core.Simd.PLAIN, None):
        yield _core.ImageMaker(height=24, width=31, flip=0.5, max_pixels=MAX_PIXELS, level=level)
        pad = _core.ImageCrop.PAD
        yield _core.ImageMaker(height=20, width=20, crop=pad, channels=1, max_pixels=MAX_PIXELS, level=level)
        yield _core.ImageMaker(height=16, width=16, flip=0.5, channels=1, max_pixels=MAX_PIXELS, level=level, numbers=True)


def outcome(data: bytes, seed: int) -> str:
    """What becomes of a mutant."""
    values, offsets, seeds = np.frombuffer(data, np.uint8), np.array([0, len(data)]), np.array([seed], np.uint64)
    alone = _core.ThreadPool(1)
    made: list[bytes | str] = []
    for maker in makers():
        out = np.zeros(maker.nbytes, np.uint8)
        try:
            maker.make(values, offsets, seeds, out, alone)
            made.append(out.tobytes())
        except ImageError as error:
            made.append(str(error))
    if made[: len(made) // 2] != made[len(made) // 2 :]:
        return "WRONG: levels that differ"
    try:
        _core.shrink_image(values, 30, 80, MAX_PIXELS)
    except ImageError as error:
        return error.reason.split(":")[0]
    return "a picture"


def with_sums(data: bytes) -> bytes:
    """A damaged PNG whose chunks have their checksums again, so that the damage gets as far as the pixels; others as they are."""
    made, at = bytearray(data), 8
    while data.startswith(b"\x89PNG") and at + 12 <= len(made):
        end = at + 8 + int.from_bytes(made[at : at + 4])
        made[end : end + 4] = zlib.crc32(made[at + 4 : end]).to_bytes(4) if end + 4 <= len(made) else made[end : end + 4]
        at = end + 4
    return bytes(made)


def campaign(count: int, seed: int) -> collections.Counter[str]:
    """What became of how many mutants."""
    good = [encoded(*kind) for kind in kinds().values()]
    outcomes: collections.Counter[str] = collections.Counter()
    for number in range(count):
        signal.alarm(patience_s(DEADLINE_S))
        data = mutant(good[number % len(good)], seed + number)
        outcomes[outcome(with_sums(data) if number // len(good) % 2 else data, number)] += 1
    signal.alarm(0)
    return outcomes


def main() -> int:
    """0 if nothing was wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    limit_address_space(MORE_BYTES)
    outcomes = campaign(arguments.count, arguments.seed)
    for name, number in outcomes.most_common():
        sys.stdout.write(f"{number:8} {name}\n")
    return int(any(name.startswith("WRONG") for name in outcomes))


if __name__ == "__main__":
    sys.exit(main())
