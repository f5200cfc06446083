"""A manifest on its way: written aside, then published."""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import ReadError, StoreError
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
    manifest: Manifest


def write_draft(files: Storage, manifest: Manifest) -> Draft:
    """Step 4 of a commit. What no reader would take, such as a counter beyond its limit, is refused here."""
    data = encode_manifest(manifest)
    if len(data) > MAX_MANIFEST_BYTES:
        raise ValueError(
            f"the manifest would have {len(data)} bytes, more than {MAX_MANIFEST_BYTES}: use larger chunks, or rebalance"
        )
    temporary = f"{MANIFEST_DIRECTORY}/{temporary_name(manifest.write_id)}"
    final = f"{MANIFEST_DIRECTORY}/{manifest_name(manifest.generation)}"
    try:
        decoded = decode_manifest(data, files.full(final))
    except ReadError as error:
        raise StoreError(f"{error}; nothing was published: convert the store into a new one") from error
    files.draft(temporary, data)
    return Draft(temporary, final, data, decoded)


def publish_draft(files: Storage, draft: Draft, needs: Mapping[str, int]) -> None:
    """Steps 5 to 7; ConflictError if the generation exists, or a file that it needs does not."""
    files.publish(draft.temporary, draft.final, draft.data, needs)
