"""Writers of foreign formats, blends, BatchMap and Tokenize. Sources are opened with :func:`penstock.open`."""

from penstock.conversion.files import Converted
from penstock.conversion.tasks import BatchMap
from penstock.conversion.text import Tokenize
from penstock.formats.collection import write_collection
from penstock.formats.documents_writer import write_documents
from penstock.formats.megatron import open_blend
from penstock.formats.rows import encode_rows, write_rows
from penstock.formats.tokens_writer import write_tokens

__all__ = [
    "BatchMap",
    "Converted",
    "Tokenize",
    "encode_rows",
    "open_blend",
    "write_collection",
    "write_documents",
    "write_rows",
    "write_tokens",
]
