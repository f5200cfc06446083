"""How tests reach the servers that they start."""

from typing import Any


def s3_options(endpoint: str) -> dict[str, Any]:
    """The storage options of a server that speaks S3, at an address on this machine."""
    return {
        "endpoint": endpoint,
        "access_key_id": "key",
        "secret_access_key": "secret",
        "region": "us-east-1",
        "allow_http": True,
    }
