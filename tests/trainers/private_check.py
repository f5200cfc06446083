"""What adapters define or set of the private names of the classes that they inherit from, in the real packages. It checks itself.

Usage: python -m tests.trainers.private_check
"""

import ast
import importlib
import inspect
import sys
from typing import Any

MODULES = ("grain", "huggingface", "lightning", "megatron", "olmo_core", "orbax", "torchft", "torchtitan")
UNAVOIDABLE = {"OlmoDataLoader._iter_batches"}
"""An abstract method of OLMo-core: its DataLoaderBase cannot be made without it."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def set_names(source: str) -> set[str]:
    """What a class defines, and sets of itself."""
    nodes = list(ast.walk(ast.parse(inspect.cleandoc("\n" + source))))
    found = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    return found | {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}


def inherited(one: type[Any]) -> set[str]:
    """Private names of classes that are not penstock's."""
    foreign = [base for base in one.__mro__[1:] if not base.__module__.startswith("penstock.") and base is not object]
    names = {name for base in foreign for name in vars(base)}
    for base in foreign:
        try:
            names |= set_names(inspect.getsource(base))
        except (OSError, TypeError):  # written in C
            continue
    return {name for name in names if is_private(name)}


def main() -> None:
    found: set[str] = set()
    count = 0
    for name in MODULES:
        module = importlib.import_module(f"penstock.deliver.{name}")
        for one in vars(module).values():
            if inspect.isclass(one) and one.__module__ == module.__name__:
                count += 1
                found |= {f"{one.__name__}.{own}" for own in set_names(inspect.getsource(one)) & inherited(one)}
    assert found == UNAVOIDABLE, found
    assert count >= 12, count
    sys.stdout.write(f"{count} classes of adapters use of the private names they inherit only {', '.join(sorted(found))}\n")


if __name__ == "__main__":
    main()
