"""One file a format; open.py has the table of them."""
