"""Sources: everything that can be read as records, under one protocol; and writers of the formats of others."""

from penstock.source.collection import write_collection

__all__ = ["write_collection"]
