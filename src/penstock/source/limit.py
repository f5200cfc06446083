"""How much may be decoded at once: a few bytes of a file from a stranger can stand for very many."""

from penstock.errors import BatchTooLargeError

__all__ = ["MAX_BATCH_BYTES", "MAX_BLOCK_BYTES", "check_batch", "check_block", "one_line"]

MAX_BLOCK_BYTES = 1 << 30
"""What is decoded at once, unless ``max_block_bytes`` is given: a row group, record batch, chunk, image or file."""

MAX_BATCH_BYTES = 16 << 30
PLAUSIBLE_RATIO = 64
"""Real data is seldom compressed better than this, so that large blocks of it need no larger limit. Stores have the same rule."""


def check_block(where: str, declared: int, stored: int, limit: int) -> None:
    """BatchTooLargeError if a block would have more bytes than ``limit``, and more than its stored bytes make plausible."""
    if declared > limit and declared > PLAUSIBLE_RATIO * stored:
        raise BatchTooLargeError(
            f"{where}: {stored} stored bytes claim to be {declared}, more than the limit of {limit}: if the data can be trusted, "
            "open it with a larger max_block_bytes"
        )


def check_batch(where: str, num_bytes: int) -> None:
    """BatchTooLargeError if a batch would have more bytes than any batch may."""
    if num_bytes > MAX_BATCH_BYTES:
        raise BatchTooLargeError(
            f"{where}: expected a batch of at most {MAX_BATCH_BYTES} bytes, found {num_bytes}; read fewer records"
        )


def one_line(words: object, most: int) -> str:
    """What a library says of a file, as part of a message: printable, and not longer than ``most``."""
    return "".join(one if one.isprintable() else " " for one in " ".join(str(words).split()))[:most]
