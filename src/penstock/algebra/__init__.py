"""Sources made of sources: maps of indices and fields. Nothing here owns bytes."""
