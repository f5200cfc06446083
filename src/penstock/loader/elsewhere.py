"""Batches made in other processes: the work goes there as a small recipe, and is unpacked once."""

import pickle
from collections import OrderedDict
from typing import Any

from penstock.loader.schedule import Place
from penstock.loader.work import Work

__all__ = ["make_elsewhere", "pack"]

MOST_KEPT = 4

_unpacked: "OrderedDict[bytes, Work]" = OrderedDict()


def pack(work: Work) -> bytes:
    """The work as bytes. They are made and read by processes of one run only, never stored."""
    try:
        return pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(f"the stream and the transform must be picklable to be sent to an executor: {error}") from error


def make_elsewhere(packed: bytes, place: Place) -> Any:
    """The batch of a place, made here."""
    work = _unpacked.get(packed)
    if work is None:
        work = _unpacked[packed] = pickle.loads(packed)
        while len(_unpacked) > MOST_KEPT:
            _unpacked.popitem(last=False)
    return work.make(place)
