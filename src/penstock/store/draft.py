"""A manifest on its way: written aside, then published."""

from dataclasses import dataclass

from penstock.store.layout import MANIFEST_DIRECTORY, MAX_MANIFEST_BYTES, manifest_name, temporary_name
from penstock.store.manifest import Manifest, decode_manifest, encode_manifest
from penstock.store.storage import Storage

__all__ = ["Draft", "publish_draft", "write_draft"]


@dataclass(frozen=True)
class Draft:
    """A manifest before it has its name."""

    temporary: str
    final: str
    data: bytes


def write_draft(files: Storage, manifest: Manifest) -> Draft:
    """Step 4 of a commit."""
    data = encode_manifest(manifest)
    if len(data) > MAX_MANIFEST_BYTES:
        raise ValueError(
            f"the manifest would have {len(data)} bytes, more than {MAX_MANIFEST_BYTES}: use larger chunks, or rebalance"
        )
    temporary, final = temporary_name(manifest.write_id), manifest_name(manifest.generation)
    files.draft(f"{MANIFEST_DIRECTORY}/{temporary}", data)
    return Draft(f"{MANIFEST_DIRECTORY}/{temporary}", f"{MANIFEST_DIRECTORY}/{final}", data)


def publish_draft(files: Storage, draft: Draft) -> Manifest:
    """Steps 5 to 7; ConflictError if the generation exists."""
    files.publish(draft.temporary, draft.final, draft.data)
    return decode_manifest(draft.data, files.full(draft.final))
