"""Writers of foreign formats, storage of your own, blends, and how to convert. Sources are opened with :func:`penstock.open`."""

from penstock.conversion.files import Converted
from penstock.conversion.image import ShrinkImages
from penstock.conversion.tasks import BatchMap
from penstock.conversion.text import Tokenize
from penstock.formats.collection import write_collection
from penstock.formats.documents_writer import write_documents
from penstock.formats.megatron import open_blend
from penstock.formats.rows import encode_rows, write_rows
from penstock.formats.tokens_writer import write_tokens
from penstock.remote.backend import Backend, ObjectFacts, storage

__all__ = [
    "Backend",
    "BatchMap",
    "Converted",
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
