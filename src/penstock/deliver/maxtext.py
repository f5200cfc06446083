"""Delivery to MaxText, and to programs with its names of fields. Nothing of it is imported."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.deliver.adapter import check_fields

__all__ = ["maxtext"]


def maxtext(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch of packs under MaxText's names; a ``transform=``. Packs need ``first_segment=1`` and the fields below.

    ``inputs``, ``inputs_segmentation`` and ``inputs_position`` are the fields tokens, segment and position; ``targets`` the labels,
    0 where none counts. ``targets_segmentation`` is 0 there, too: such targets have no loss. Segment 0 is padding.

    >>> import penstock as pen
    >>> from penstock.deliver.maxtext import maxtext
    >>> fields = ("tokens", "labels", "segment", "position")
    >>> packs = pen.open({"text": ["abc", "de"]}).in_order().pack(5, fields=fields, first_segment=1)
    >>> next(iter(pen.Loader(packs, 1, transform=maxtext)))["targets_segmentation"].tolist()
    [[1, 1, 0, 0, 0]]
    """
    needed = ("tokens", "labels", "segment", "position")
    check_fields("batch", batch, needed, ", first_segment=1")
    tokens, labels, segment, position = (batch[name] for name in needed)
    counts = labels >= 0
    if (segment < 0).any() or counts[segment == 0].any():  # a document that MaxText would take for padding
        raise ValueError("segment 0 is padding for MaxText, and here it is a document: use pack(..., first_segment=1)")
    return {
        "inputs": tokens.astype(np.int32),
        "inputs_segmentation": segment.astype(np.int32),
        "inputs_position": position.astype(np.int32),
        "targets": np.where(counts, labels, 0).astype(np.int32),
        "targets_segmentation": np.where(counts, segment, 0).astype(np.int32),
        "targets_position": position.astype(np.int32),
    }
