"""The commands. A command parses its options, calls the library and prints the result."""
