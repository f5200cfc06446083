"""How much a test does: a sample in every run, everything in a campaign (make campaign, or --hypothesis-profile=campaign)."""

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import settings

T = TypeVar("T")


def is_campaign() -> bool:
    """Whether this run is a campaign."""
    return settings.get_current_profile_name() == "campaign"


def every(stride: int, everything: Sequence[T], first: int = 0) -> Sequence[T]:
    """Every ``stride``-th of many cases; in a campaign, all of them."""
    return everything if is_campaign() else everything[first % stride :: stride]


def count(some: int, many: int) -> int:
    """How often something is done that is drawn by lot: ``some`` times, in a campaign ``many``."""
    return many if is_campaign() else some
