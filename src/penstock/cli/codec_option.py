"""--codec: [FIELD=]NAME[:LEVEL] as codecs."""

from collections.abc import Sequence

import typer

from penstock.codec import LZ4, Codec, Deflate, Raw, Zstd

__all__ = ["parse_codecs"]

_WITH_LEVEL: dict[str, type[Deflate] | type[Zstd] | type[LZ4]] = {"deflate": Deflate, "zstd": Zstd, "lz4": LZ4}


def parse_codecs(words: Sequence[str] | None, fields: Sequence[str] | None) -> Codec | dict[str, Codec] | None:
    """One codec for all, a dict for some fields, or None. Fields with a codec of their own keep it beside one for all others, which
    needs the names of the ``fields``.
    """
    given = dict(_parse(word) for word in words or ())
    for_all = given.pop("", None)
    if for_all is None or not given:
        return for_all or given or None
    if fields is None:
        raise _wrong("with --map, give one codec for all fields, or one for each")
    return dict.fromkeys(fields, for_all) | given


def _parse(word: str) -> tuple[str, Codec]:
    field, _, codec = word.rpartition("=")
    name, colon, level = codec.partition(":")
    if codec == "raw":
        return field, Raw()
    if name not in _WITH_LEVEL or (colon and not level.isdecimal()):
        raise _wrong(f"expected raw, or {', '.join(_WITH_LEVEL)} with or without :LEVEL, got {codec!r}")
    try:
        return field, _WITH_LEVEL[name](int(level)) if colon else _WITH_LEVEL[name]()
    except ValueError as error:
        raise _wrong(f"{name}: {error}") from error


def _wrong(what: str) -> typer.BadParameter:
    return typer.BadParameter(what, param_hint="--codec")
