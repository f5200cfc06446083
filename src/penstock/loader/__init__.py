"""The loader: positions -> ids -> bytes -> batches, prefetched, in order, bounded in bytes."""

from penstock.loader.loader import Batches, Loader
from penstock.loader.make_batch import Info, seed_for
from penstock.loader.resume_check import verify_resume
from penstock.loader.stats import Stats

__all__ = ["Batches", "Info", "Loader", "Stats", "seed_for", "verify_resume"]
