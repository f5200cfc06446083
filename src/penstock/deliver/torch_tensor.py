"""Tensors in the place of a batch's arrays, over the same memory."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from penstock.ragged import Ragged

__all__ = ["MaskedTensor", "RaggedTensor", "as_tensors", "replace_leaves"]


class RaggedTensor(NamedTuple):
    """Arrays of different lengths: item i is ``values[offsets[i]:offsets[i + 1]]``.

    ``shapes`` has a row per item where items have two dimensions or more; ``present`` is False where an item is missing, and None
    where none can be.

    >>> from penstock import Ragged
    >>> from penstock.deliver.torch import as_tensors
    >>> import numpy as np
    >>> as_tensors(Ragged(np.array([1, 2, 3]), np.array([0, 2, 3]))).offsets
    tensor([0, 2, 3])
    """

    values: torch.Tensor
    offsets: torch.Tensor
    shapes: torch.Tensor | None = None
    present: torch.Tensor | None = None

    def to_nested(self) -> torch.Tensor:
        """A nested tensor of jagged layout over the same memory, for items of one dimension."""
        if self.shapes is not None:
            raise ValueError("only items of one dimension can be a nested tensor")
        return torch.nested.nested_tensor_from_jagged(self.values, self.offsets)


class MaskedTensor(NamedTuple):
    """An array with missing values: ``mask`` is True where ``data`` means nothing, as in numpy.

    >>> import numpy as np
    >>> from penstock.deliver.torch import as_tensors
    >>> as_tensors(np.ma.MaskedArray([1, 0], mask=[False, True])).mask
    tensor([False,  True])
    """

    data: torch.Tensor
    mask: torch.Tensor


def as_tensors(batch: Any) -> Any:
    """A batch with tensors in the place of arrays, at any depth, over the same memory; a ``collate_fn`` for batches read at once.

    Masked arrays become :class:`MaskedTensor`, :class:`~penstock.Ragged` ones :class:`RaggedTensor`; texts and byte strings become
    lists. Copied are only arrays that a tensor cannot show: read-only ones, those of the other byte order or of negative strides.

    >>> import numpy as np
    >>> from penstock.deliver.torch import as_tensors
    >>> as_tensors({"x": np.arange(3), "name": np.array(["a", "b", "c"])})
    {'x': tensor([0, 1, 2]), 'name': ['a', 'b', 'c']}
    """
    return replace_leaves(batch, _tensors)


def replace_leaves(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """The same nest of dicts, lists and tuples with other leaves."""
    if isinstance(value, Mapping):
        return {key: replace_leaves(inner, leaf) for key, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(replace_leaves(inner, leaf) for inner in value))
    if isinstance(value, list | tuple):
        return type(value)(replace_leaves(inner, leaf) for inner in value)
    return leaf(value)


def _tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            return MaskedTensor(_tensor(value.data), _tensor(np.ma.getmaskarray(value)))
        return value.tolist() if value.dtype.kind in "OSU" else _tensor(value)
    if isinstance(value, Ragged):
        if value.kind != "array":
            return value.to_list()
        shapes = None if value.shapes is None else _tensor(value.shapes.astype(np.int64))
        return RaggedTensor(
            _tensor(value.values), _tensor(value.offsets), shapes, None if value.present is None else _tensor(value.present)
        )
    return value


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    if not array.flags.writeable:
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except ValueError:  # the other byte order, or negative strides
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))
    except TypeError as error:
        name = array.dtype.name
        if not name.startswith(("bfloat16", "float8_")) or not hasattr(torch, name):
            raise TypeError(f"torch has no element type {name}: change the field in a transform of the loader") from error
    return _tensor(array.view(f"u{array.itemsize}")).view(getattr(torch, name))
