"""Arrow types as fields: which column becomes what, under which name."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import SchemaMismatchError, SizeOverflowError, UnsupportedTypeError
from penstock.schema import Field, Schema
from penstock.source.optional import need

__all__ = ["Fields", "Leaf", "choose", "need_agreement", "storage_type"]

Fields = Sequence[str] | Mapping[str, str]
"""Names of columns, or new names with the names of the columns they stand for."""


@dataclass(frozen=True)
class Leaf:
    """One field: where it is in a table, its Arrow type, and what it becomes."""

    path: tuple[str, ...]
    type: Any
    field: Field


def choose(schema: Any, fields: Fields | None, where: str) -> dict[str, Leaf]:
    """The wanted columns of an Arrow schema by the names of their fields. Members of structs are columns called ``a.b``.

    The name of a struct stands for all its members. Columns that are not wanted may have any type.
    """
    there: dict[str, list[tuple[tuple[str, ...], Any]]] = {}
    for path, kind in _columns(schema, ()):
        there.setdefault(".".join(path), []).append((path, kind))
    chosen: dict[str, Leaf] = {}
    for name, old in _wanted(list(there), fields, where):
        if len(there[old]) > 1:
            raise SchemaMismatchError(f"{where}: expected one column {old!r}, found {len(there[old])}; choose others: fields=[...]")
        if name in chosen:
            raise ValueError(f"fields names {name!r} twice")
        path, kind = there[old][0]
        chosen[name] = Leaf(path, kind, _field_or_error(old, kind, where))
        try:
            Schema.make({name: chosen[name].field})
        except ValueError as error:
            raise SchemaMismatchError(f"{where}: {error}; rename the column: fields={{'new_name': {old!r}, ...}}") from error
    if not chosen:
        raise SchemaMismatchError(f"{where}: expected at least one column, found none")
    return chosen


def need_agreement(first: Mapping[str, Leaf], other: Mapping[str, Leaf], paths: tuple[str, str], *, exact: bool) -> None:
    """SchemaMismatchError that shows the difference, unless two files have the same fields; ``exact``: of the same Arrow types."""
    if list(first) != list(other):
        raise SchemaMismatchError(f"{paths[1]}: expected the fields {list(first)} as in {paths[0]}, found {list(other)}")
    for name, leaf in first.items():
        if leaf.field != other[name].field or (exact and leaf.type != other[name].type):
            raise SchemaMismatchError(
                f"{paths[1]}: expected {leaf.type} in column {name!r} as in {paths[0]}, found {other[name].type}"
            )


def storage_type(kind: Any) -> Any:
    """The type below extension types."""
    base = need("pyarrow", "arrow").BaseExtensionType
    while isinstance(kind, base):
        kind = kind.storage_type
    return kind


def _columns(parent: Any, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Path and type of everything below a schema or struct that is not a struct itself."""
    types = need("pyarrow", "arrow").types
    for number in range(len(parent) if above == () else parent.num_fields):
        member = parent.field(number)
        kind = storage_type(member.type)
        if types.is_struct(kind):
            yield from _columns(kind, (*above, member.name))
        else:
            yield (*above, member.name), member.type


def _wanted(names: Sequence[str], fields: Fields | None, where: str) -> Iterator[tuple[str, str]]:
    """New and old name of every wanted column."""
    if fields is None:
        yield from ((name, name) for name in names)
        return
    if isinstance(fields, str):
        raise TypeError(f"fields must be a list of names or a dict of new and old ones, got {fields!r}")
    for new, old in fields.items() if isinstance(fields, Mapping) else ((name, name) for name in fields):
        found = [name for name in names if name == old or name.startswith(f"{old}.")]
        if not found:
            raise KeyError(f"{where}: there is no column {old!r}; there are {list(names)}")
        yield from ((f"{new}{name.removeprefix(old)}", name) for name in found)


def _field_or_error(name: str, kind: Any, where: str) -> Field:
    try:
        field = _field(kind)
    except ValueError as error:
        raise SizeOverflowError(f"{where}: column {name!r} of {kind}: {error}") from error
    if field is None:
        raise UnsupportedTypeError(
            f"{where}: expected numbers, texts, bytes or lists of numbers in column {name!r}, found {kind}; "
            "choose the other columns: fields=[...]"
        )
    return field


def _field(kind: Any) -> Field | None:
    types = need("pyarrow", "arrow").types
    plain = storage_type(kind)
    if types.is_string(plain) or types.is_large_string(plain) or str(plain) == "string_view":
        return Field.text()
    if types.is_binary(plain) or types.is_large_binary(plain) or str(plain) == "binary_view":
        return Field.bytes()
    if types.is_list(plain) or types.is_large_list(plain):
        element = _number(storage_type(plain.value_type))
        return None if element is None else Field.ragged(element)
    if types.is_dictionary(plain):
        return _field(plain.value_type)
    return _fixed(kind)


def _fixed(kind: Any) -> Field | None:
    pa = need("pyarrow", "arrow")
    sizes: list[int] = []
    plain = storage_type(kind)
    while pa.types.is_fixed_size_list(plain):
        sizes.append(plain.list_size)
        plain = storage_type(plain.value_type)
    element = _number(plain)
    if pa.types.is_fixed_size_binary(plain):
        element = np.dtype(np.uint8)
        sizes.append(plain.byte_width)
    if element is None:
        return None
    if isinstance(kind, pa.FixedShapeTensorType):
        shape = tuple(kind.shape)
        if math.prod(shape) != math.prod(sizes) or list(kind.permutation or range(len(shape))) != list(range(len(shape))):
            return None
        return Field(element, shape)
    return Field(element, tuple(sizes))


def _number(kind: Any) -> np.dtype[Any] | None:
    types = need("pyarrow", "arrow").types
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype())
    return None
