"""remote: bytes in object stores, read and written so that neither a slow nor a broken network changes what is read."""
