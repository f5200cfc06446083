"""Adapters use nothing private, neither of penstock's other modules nor of the packages of trainers.

What they inherit is looked at with the real packages: ``tests/trainers/private_check.py``.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "src" / "penstock" / "deliver"
ADAPTERS = sorted(
    path for path in FOLDER.glob("*.py") if path.name not in ("__init__.py", "jax.py", "torch.py", "torch_sampler.py")
)
OWN = {"self", "cls"}


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def names_of(tree: ast.AST) -> set[str]:
    """The private names that a module itself defines, as functions, classes, or by assignment."""
    found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    found |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    found |= {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name)
    }
    return {name for name in found if is_private(name)}


def private_uses(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    defined = names_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names if is_private(f"{node.module}.{alias.name}"))
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            own = isinstance(node.value, ast.Name) and node.value.id in OWN
            if not own or node.attr not in defined:
                yield ast.unparse(node)


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda path: path.name)
def test_an_adapter_uses_nothing_private(path: Path) -> None:
    assert list(private_uses(path.read_text())) == []


@pytest.mark.parametrize(
    "line",
    [
        "from penstock.loader.loader import _open",
        "from grain._src.core import sharding",
        "import torch._utils",
        "loader._at = 3",
        "super()._quorum()",
        "class A(B):\n    def f(self):\n        return self._inherited",
    ],
)
def test_a_private_name_is_found(line: str) -> None:
    assert list(private_uses(line))
