"""The loader: positions -> ids -> bytes -> batches, ahead of time, in order, bounded in bytes."""

from penstock.loader.batches import Batches
from penstock.loader.loader import Loader
from penstock.loader.stats import Stats
from penstock.loader.verify import verify_resume
from penstock.loader.work import Info, seed_for

__all__ = ["Batches", "Info", "Loader", "Stats", "seed_for", "verify_resume"]
