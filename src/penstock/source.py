"""Datasets and storage of others, writers of foreign formats, blends, how to convert. :func:`penstock.open` opens sources."""

from penstock.conversion.convert import Converted
from penstock.conversion.record_map import BatchMap, ShrinkImages, Tokenize
from penstock.formats.array import Items
from penstock.formats.collection import write_collection
from penstock.formats.megatron import open_blend
from penstock.formats.rows import encode_rows, write_rows
from penstock.formats.tokens_writer import write_documents, write_tokens
from penstock.remote.backend import Backend, ObjectFacts, storage

__all__ = [
    "Backend",
    "BatchMap",
    "Converted",
    "Items",
    "ObjectFacts",
    "ShrinkImages",
    "Tokenize",
    "encode_rows",
    "open_blend",
    "storage",
    "write_collection",
    "write_documents",
    "write_rows",
    "write_tokens",
]
