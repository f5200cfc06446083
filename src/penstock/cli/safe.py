"""Text out of data, made safe for a terminal: nothing in it can move the cursor, change colours or turn the direction of text."""

import unicodedata

__all__ = ["clip", "safe"]


def safe(text: str) -> str:
    """The text with everything but printable characters written out, such as ``\\x1b``."""
    return text if text.isprintable() else "".join(character if _is_shown(character) else _escape(character) for character in text)


def clip(text: str, most: int) -> str:
    """At most so many characters, and how many there were if there were more. Safe as well."""
    if len(text) <= most:
        return safe(text)
    return f"{safe(text[:most])}… ({len(text):,} characters)"


def _is_shown(character: str) -> bool:
    return character.isprintable() and unicodedata.category(character) != "Cf"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii") if ord(character) < 0x10000 else f"\\U{ord(character):08x}"
