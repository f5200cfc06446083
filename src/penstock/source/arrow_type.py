"""Arrow types as fields: which column becomes what, under which name."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import SchemaMismatchError, SizeOverflowError, UnsupportedTypeError
from penstock.schema import Field, Schema
from penstock.source.optional import need

__all__ = ["Fields", "Leaf", "choose", "need_agreement", "plain", "plain_fields", "refitted", "storage", "storage_type"]

Fields = Sequence[str] | Mapping[str, str]
"""Names of columns, or new names with the names of the columns they stand for."""


@dataclass(frozen=True)
class Leaf:
    """One field: where it is in a table, its Arrow type, and what it becomes."""

    path: tuple[str, ...]
    type: Any
    field: Field


def plain_fields(fields: Fields | None) -> Fields | None:
    """What the user gave, as a dict or a list that can be pickled."""
    if isinstance(fields, str):
        raise TypeError(f"fields must be a list of names or a dict of new and old ones, got {fields!r}")
    return fields if fields is None else dict(fields) if isinstance(fields, Mapping) else list(fields)


def choose(schema: Any, fields: Fields | None, where: str) -> dict[str, Leaf]:
    """The wanted columns of an Arrow schema by the names of their fields. Members of structs are columns called ``a.b``.

    The name of a struct stands for all its members. Columns that are not wanted may have any type.
    """
    there: dict[str, list[tuple[tuple[str, ...], Any]]] = {}
    for path, kind in _columns(schema, ()):
        there.setdefault(".".join(path), []).append((path, kind))
    chosen: dict[str, Leaf] = {}
    for name, old in _wanted(list(there), fields, where):
        path, kind = there[old][0]
        if len(there[old]) > 1 or schema.names.count(path[0]) > 1:
            raise SchemaMismatchError(f"{where}: expected one column {old!r}, found several; choose the others: fields=[...]")
        if name in chosen:
            raise ValueError(f"fields must have every name once, got {name!r} twice")
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


def refitted(leaf: Leaf, column: Any, where: str) -> Leaf:
    """The leaf for a column as a file has it: its type may differ from that in other files, what it becomes may not."""
    for member in leaf.path[1:]:
        column = storage_type(column).field(member).type
    if _field(column) != leaf.field:
        raise SchemaMismatchError(f"{where}: expected {leaf.type} in column {'.'.join(leaf.path)!r}, found {column}")
    return Leaf(leaf.path, column, leaf.field)


def storage_type(kind: Any) -> Any:
    """The type below extension types."""
    base = need("pyarrow", "arrow").BaseExtensionType
    while isinstance(kind, base):
        kind = kind.storage_type
    return kind


def storage(array: Any) -> Any:
    """An array below its extension types."""
    kind = need("pyarrow", "arrow").ExtensionArray
    while isinstance(array, kind):
        array = array.storage
    return array


def plain(array: Any) -> Any:
    """An array without extension types and views, which are converted."""
    pa = need("pyarrow", "arrow")
    array = storage(array)
    target = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}.get(str(array.type))
    if target is None:
        return array
    array.validate(full=True)  # the conversion trusts its input
    return array.cast(target)


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
    inner = storage_type(kind)
    if types.is_string(inner) or types.is_large_string(inner) or str(inner) == "string_view":
        return Field.text()
    if types.is_binary(inner) or types.is_large_binary(inner) or str(inner) == "binary_view":
        return Field.bytes()
    if types.is_list(inner) or types.is_large_list(inner):
        element = _number(storage_type(inner.value_type))
        return None if element is None else Field.ragged(element)
    if types.is_dictionary(inner):
        return _field(inner.value_type)
    return _fixed(kind)


def _fixed(kind: Any) -> Field | None:
    pa = need("pyarrow", "arrow")
    sizes: list[int] = []
    inner = storage_type(kind)
    while pa.types.is_fixed_size_list(inner):
        sizes.append(inner.list_size)
        inner = storage_type(inner.value_type)
    element = _number(inner)
    if pa.types.is_fixed_size_binary(inner):
        element = np.dtype(np.uint8)
        sizes.append(inner.byte_width)
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
    if not (types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)):
        return None
    element: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
    return element
