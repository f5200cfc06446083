"""Sources: everything that can be read as records, under one protocol; and writers of the formats of others."""

from penstock.source.batch_map import BatchMap
from penstock.source.collection import write_collection
from penstock.source.rows_writer import encode_rows, write_rows
from penstock.source.tokens_writer import write_tokens

__all__ = ["BatchMap", "encode_rows", "write_collection", "write_rows", "write_tokens"]
