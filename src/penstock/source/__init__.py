"""Sources: everything that can be read as records, under one protocol."""
