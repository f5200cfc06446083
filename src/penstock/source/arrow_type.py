"""Arrow types as fields: which column becomes what, under which name."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.errors import SchemaMismatchError, SizeOverflowError, UnsupportedTypeError
from penstock.interfaces import IntArray
from penstock.schema import Field, Schema
from penstock.source.limit import one_line
from penstock.source.optional import need

__all__ = [
    "Fields",
    "Leaf",
    "choose",
    "expansion",
    "is_view",
    "json_type",
    "may_be_null",
    "need_agreement",
    "null_counts",
    "plain",
    "plain_fields",
    "refitted",
    "storage",
    "storage_type",
    "view_lengths",
    "with_nullable",
]

Fields = Sequence[str] | Mapping[str, str]
"""Names of columns, or new names with the names of the columns they stand for."""


@dataclass(frozen=True)
class Leaf:
    """One field: where it is in a table, its Arrow type, and what it becomes."""

    path: tuple[str, ...]
    type: Any
    field: Field

    @property
    def is_json(self) -> bool:
        """Whether the field holds JSON texts, of values that no field holds as they are."""
        return _plain_field(self.type) is None


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
        if (
            leaf.field.with_nullable(False) != other[name].field.with_nullable(False)
            or (exact and leaf.type != other[name].type)
            or leaf.is_json != other[name].is_json
        ):
            raise SchemaMismatchError(
                f"{paths[1]}: expected {_shown(leaf.type)} in column {name!r} as in {paths[0]}, found {_shown(other[name].type)}"
            )


def refitted(leaf: Leaf, column: Any, where: str) -> Leaf:
    """The leaf for a column as a file has it: its type may differ from that in other files, what it becomes may not."""
    for member in leaf.path[1:]:
        column = storage_type(column).field(member).type
    fitting = Leaf(leaf.path, column, leaf.field)
    if _field(column) != leaf.field.with_nullable(False) or fitting.is_json != leaf.is_json:
        raise SchemaMismatchError(
            f"{where}: expected {_shown(leaf.type)} in column {'.'.join(leaf.path)!r}, found {_shown(column)}"
        )
    return fitting


def with_nullable(leaves: Mapping[str, Leaf], nullable: Collection[str]) -> dict[str, Leaf]:
    """The same leaves, of which those named are nullable."""
    return {name: replace(leaf, field=leaf.field.with_nullable(name in nullable)) for name, leaf in leaves.items()}


def may_be_null(schema: Any, leaf: Leaf) -> bool:
    """Whether an Arrow schema allows nulls in a column, or in a struct above it. Most do, whatever is in the data."""
    members = [schema.field(leaf.path[0])]
    for name in leaf.path[1:]:
        members.append(storage_type(members[-1].type).field(name))
    return any(member.nullable for member in members)


def null_counts(schema: Any, leaves: Mapping[str, Leaf]) -> dict[str, list[int]]:
    """The numbers of the nodes of an Arrow record batch that say how many nulls a column has, and the structs above it."""
    found = {}
    for name, leaf in leaves.items():
        parent, first, nodes = schema, 0, list[int]()
        for depth, member in enumerate(leaf.path):
            place = parent.get_field_index(member)
            first += sum(_num_nodes(parent.field(number).type) for number in range(place)) + (depth > 0)
            nodes.append(first)
            parent = storage_type(parent.field(place).type)
        found[name] = nodes
    return found


def _num_nodes(kind: Any) -> int:
    """Nodes of a column of a type: one, and those of the types in it; dictionaries are elsewhere."""
    inner = storage_type(kind)
    if need("pyarrow", "arrow").types.is_dictionary(inner):
        return 1
    return 1 + sum(_num_nodes(inner.field(number).type) for number in range(inner.num_fields))


def _shown(kind: Any) -> str:
    """A type for a message: it may have names of any bytes in it."""
    return one_line(kind, 200)


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


def expansion(leaf: Leaf, array: Any) -> tuple[int, int]:
    """The bytes that views in a column become when they are converted, and those that they have: many may show the same text."""
    for member in leaf.path[1:]:
        array = storage(array).field(member)
    array = storage(array)
    if not is_view(array.type):
        return 0, 0
    return int(view_lengths(array).sum()), int(array.get_total_buffer_size())


def view_lengths(array: Any) -> IntArray:
    """The lengths of the texts or byte strings that an array of views shows."""
    if len(array) == 0:
        return np.empty(0, np.int64)
    lengths = np.frombuffer(array.buffers()[1], np.int32)[::4][array.offset : array.offset + len(array)]
    return lengths.astype(np.int64).clip(0)


def is_view(kind: Any) -> bool:
    """Whether texts or byte strings of a type are elsewhere, perhaps several in the same place."""
    return str(storage_type(kind)) in ("string_view", "binary_view")


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
        raise SizeOverflowError(f"{where}: column {name!r} of {_shown(kind)}: {error}") from error
    if field is None:
        raise UnsupportedTypeError(
            f"{where}: expected numbers, texts, bytes, or lists of numbers or of what JSON has "
            f"in column {name!r}, found {_shown(kind)}; "
            "choose the other columns: fields=[...]"
        )
    return field


def _field(kind: Any) -> Field | None:
    """What a column becomes; None if it cannot be read."""
    field = _plain_field(kind)
    return Field.text() if field is None and _is_nested(kind) and json_type(kind) is not None else field


def _plain_field(kind: Any) -> Field | None:
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
        return _plain_field(inner.value_type)
    return _fixed(kind)


def _is_nested(kind: Any) -> bool:
    """Whether a column has lists or maps; the members of structs are columns of their own."""
    pa, inner = need("pyarrow", "arrow"), storage_type(kind)
    return _is_list(inner) and not isinstance(kind, pa.FixedShapeTensorType)


def _is_list(kind: Any) -> bool:
    types = need("pyarrow", "arrow").types
    is_plain = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(is_plain or types.is_list_view(kind) or types.is_large_list_view(kind) or types.is_map(kind))


def json_type(kind: Any) -> Any:
    """The Arrow type whose Python values JSON has: times and decimals are texts in it. None if there is none, as for bytes."""
    types = need("pyarrow", "arrow").types
    inner = storage_type(kind)
    if types.is_struct(inner) or _is_list(inner):
        return _json_nested(inner)
    if types.is_dictionary(inner):
        return inner if json_type(inner.value_type) == inner.value_type else None
    if types.is_float16(inner):
        return need("pyarrow", "arrow").float32()
    if types.is_decimal(inner) or types.is_date(inner) or types.is_time(inner) or types.is_timestamp(inner):
        return need("pyarrow", "arrow").string()
    is_text = types.is_string(inner) or types.is_large_string(inner) or str(inner) == "string_view"
    return inner if is_text or types.is_null(inner) or _number(inner) is not None else None


def _json_nested(kind: Any) -> Any:
    pa = need("pyarrow", "arrow")
    members = [kind.field(number) for number in range(kind.num_fields)]
    if pa.types.is_map(kind):
        members = [kind.key_field, kind.item_field]
    kinds = [json_type(member.type) for member in members]
    if None in kinds or len({member.name for member in members}) < len(members):
        return None
    if kinds == [member.type for member in members]:
        return kind
    made = [member.with_type(inner) for member, inner in zip(members, kinds, strict=True)]
    if pa.types.is_struct(kind):
        return pa.struct(made)
    if pa.types.is_map(kind):
        return pa.map_(*made)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(made[0], kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return (pa.large_list if pa.types.is_large_list(kind) else pa.list_)(made[0])
    return None


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
