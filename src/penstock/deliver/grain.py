"""Delivery to Grain and back: samples of a stream and batches of a loader in its data sets, and its data sources as penstock sources.

A penstock source is a Grain data source as it is: ``grain.MapDataset.source(penstock.open(...))``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

try:
    import grain
except ModuleNotFoundError as error:
    if error.name != "grain":  # it is there, but something it needs is not
        raise
    raise ImportError("penstock.deliver.grain needs Grain: pip install grain") from error

import numpy as np

from penstock.argument import IntArray
from penstock.batch import Batch, Outputs
from penstock.formats.open import open_data
from penstock.loader import Loader
from penstock.records import Recipe, Source
from penstock.schema import Field
from penstock.stream import Stream

__all__ = ["BatchDataset", "GrainSource", "Samples"]
