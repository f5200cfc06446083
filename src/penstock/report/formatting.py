"""Figures and texts as people read them: units, few digits, nothing that cannot be printed."""

import re
import shlex
from collections.abc import Mapping, Sequence


def printable(text: str) -> str:
    """The text with everything that cannot be printed written out, such as ``\\x1b``: it may come out of data."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _scaled(value: float, step: float, units: tuple[str, ...]) -> str:
    number = 0
    while abs(value) >= 0.9995 * step and number < len(units) - 1:
        value, number = value / step, number + 1
    return f"{_digits(value)} {units[number]}".rstrip()


def _digits(value: float) -> str:
    """Three digits that count."""
    if abs(value) >= 99.95 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def size(num_bytes: float) -> str:
    """Bytes: 1.50 MB."""
    return _scaled(float(num_bytes), 1000, ("B", "kB", "MB", "GB", "TB", "PB"))


def count(value: float) -> str:
    """A number of things: 1,234; 1.20 million."""
    return _digits(float(value)) if abs(value) < 999_500 else _scaled(value / 1e6, 1000, ("million", "billion", "trillion"))


def noun(number: float, one: str, several: str | None = None) -> str:
    """The word for a number of things: record for 1, records for any other."""
    return one if number == 1 else several or f"{one}s"


def counted(number: float, one: str, several: str | None = None) -> str:
    """A number of things by name: 1 record, 1.20 million records."""
    return f"{count(number)} {noun(number, one, several)}"


def duration(seconds: float) -> str:
    """A time: 12.3 ms."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * scale:
            return f"{_digits(seconds / scale)} {unit}"
    return "0 s" if seconds <= 0 else f"{seconds * 1e9:.0f} ns"


def percent(share: float) -> str:
    """A share: 7 %, 0.3 %."""
    value = share * 100
    return f"{value:.0f} %" if value >= 9.95 or value == int(value) else f"{value:.1f} %"


def rate(per_s: float) -> str:
    """A rate per second: 1.85 M/s."""
    return f"{_scaled(float(per_s), 1000, ('', 'k', 'M', 'G')) if per_s >= 9_995 else _digits(float(per_s))}/s".replace(" /", "/")


def ratio(value: float) -> str:
    """A ratio: 0.83, 0.0038."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def option_words(options: Mapping[str, object]) -> list[str]:
    """Options as words of a command line; those that are None or False are left out."""
    words: list[str] = []
    for option, value in options.items():
        if value is not None and value is not False:
            words += [f"--{option}"] if value is True else [f"--{option}", f"{value:g}" if isinstance(value, float) else str(value)]
    return words


def command_line(name: str, words: Sequence[str], options: Mapping[str, object]) -> str:
    """The command that does this again, without what may be secret in a URL."""
    given = [re.sub(r"(://)[^/@]*@", r"\1", word).partition("?")[0] if "://" in word else word for word in words]
    return shlex.join(["penstock", name, *given, *option_words(options)])
