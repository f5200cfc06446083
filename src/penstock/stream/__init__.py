"""Streams: a source in an order, mixed with others, cut or packed into sequences."""

from penstock.stream.documents import DocumentTable
from penstock.stream.image import ImageStream
from penstock.stream.mixed import MixedStream, mix
from penstock.stream.mixture_file import MixtureFile, load_mixture
from penstock.stream.pack import PackStream
from penstock.stream.sequence import DocumentStream, SequenceStream, TokenLine
from penstock.stream.stream import PartStream, RecordStream, Stream

__all__ = [
    "DocumentStream",
    "DocumentTable",
    "ImageStream",
    "MixedStream",
    "MixtureFile",
    "PackStream",
    "PartStream",
    "RecordStream",
    "SequenceStream",
    "Stream",
    "TokenLine",
    "load_mixture",
    "mix",
]
