"""Streams: a source in an order, mixed with others, or cut into sequences."""

from penstock.stream.document import DocumentStream
from penstock.stream.mixed import MixedStream, mix
from penstock.stream.sequence import SequenceStream, TokenLine
from penstock.stream.stream import RecordStream, Stream

__all__ = ["DocumentStream", "MixedStream", "RecordStream", "SequenceStream", "Stream", "TokenLine", "mix"]
