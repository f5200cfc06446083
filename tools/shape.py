"""Prints what shape the source is in: how many modules, lines, and places where one part knows too much of another.

``--check`` fails if a figure is above its limit. Features that were added since version 1 have lines of their own; what was there
before may not grow by the way.
"""

import argparse
import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

SOURCE = Path("src/penstock")
SMALL_LINES = 100
OWN = {"self", "cls", "mcs"}
FOREIGN = {"os", "sys", "threading", "_core"}
"""Modules whose underscored names are not ours."""

FEATURES = {
    "formats": """formats/delimited formats/flat_tokens formats/huggingface formats/jsonl formats/lance formats/lines
        formats/litdata formats/mds formats/megatron formats/packed formats/safetensors formats/sidecar formats/spans
        formats/tfrecord formats/token_line formats/webdataset formats/zarr remote/backend remote/hub""",
    "documents, packing, tokenizers": """conversion/chat conversion/record_map order/pack stream/documents stream/pack tokenizer""",
    "images": "image stream/image",
    "trainers": """deliver/adapter deliver/grain deliver/huggingface deliver/lightning deliver/maxtext deliver/megatron
        deliver/olmo_core deliver/orbax deliver/torchft deliver/torchtitan deliver/tracker""",
    "balance, buckets, plans": "order/balance order/bucket run_plan stream/cost stream/mixture_file",
    "losses and traces": "cli/trace stream/ban_file trace/",
    "peers": "remote/peers",
    "view of pipelines, search": "view/pipeline view/search",
}
"""Modules, or folders of them, that version 1 did not have, by what they are for."""
FEATURE_OF = {path: feature for feature, paths in FEATURES.items() for path in paths.split()}


class Module:
    """One file of the source."""

    def __init__(self, path: Path) -> None:
        self.path, text = path, path.read_text()
        name = str(path.relative_to(SOURCE).with_suffix(""))
        self.feature = FEATURE_OF.get(name) or FEATURE_OF.get(f"{name.partition('/')[0]}/")
        """What it was added for, after version 1."""
        self.lines = text.count("\n")
        self.tree = ast.parse(text)

    @property
    def classes(self) -> list[str]:
        """The names of its public classes."""
        return [node.name for node in self.tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]

    @property
    def isinstance_calls(self) -> int:
        """How often it asks for the type of something."""
        calls = (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        return sum(isinstance(call.func, ast.Name) and call.func.id == "isinstance" for call in calls)

    @property
    def private_accesses(self) -> int:
        """How often it uses a private attribute of an object that is not its own ``self``."""
        return sum(isinstance(node, ast.Attribute) and _is_private_of_other(node) for node in ast.walk(self.tree))


def _is_private_of_other(node: ast.Attribute) -> bool:
    if not node.attr.startswith("_") or node.attr.startswith("__"):
        return False
    owner = node.value
    if isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name):
        return owner.func.id != "super"
    return not (isinstance(owner, ast.Name) and owner.id in OWN | FOREIGN)


def contract_exceptions() -> int:
    """Imports that the contracts of the layers leave out."""
    contracts = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return sum(len(contract.get("ignore_imports", ())) for contract in contracts)


def read_modules() -> list[Module]:
    """All files of the source. A path in FEATURES that names none of them is an error."""
    missing = [path for path in FEATURE_OF if not ((SOURCE / f"{path}.py").exists() or (SOURCE / path).is_dir())]
    if missing:
        raise SystemExit(f"FEATURES names modules that do not exist: {', '.join(missing)}")
    return [Module(path) for path in sorted(SOURCE.rglob("*.py"))]


def measure(modules: Sequence[Module]) -> dict[str, tuple[int, int]]:
    """The figures, each with its limit."""
    names = Counter(name for module in modules for name in module.classes)

    def total(of: Callable[[Module], int], under: str = "") -> int:
        return sum(of(module) for module in modules if str(module.path.relative_to(SOURCE)).startswith(under))

    return {
        "modules": (len(modules), 179),
        "lines of what version 1 had": (total(lambda module: module.lines * (module.feature is None)), 44_700),
        f"modules under {SMALL_LINES} lines": (total(lambda module: module.lines < SMALL_LINES), 30),
        "isinstance in loader/": (total(lambda module: module.isinstance_calls, "loader/"), 20),
        "private attributes of other objects": (total(lambda module: module.private_accesses), 25),
        "exceptions of the import contracts": (contract_exceptions(), 0),
        "types that share a name": (sum(count > 1 for count in names.values()), 0),
    }


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a figure is above its limit")
    check = parser.parse_args().check
    modules = read_modules()
    found = measure(modules)
    for name, (figure, limit) in found.items():
        print(f"{name:38} {figure:7,}  limit {limit:7,}  {'' if figure <= limit else 'above'}".rstrip())
    print(f"{'lines in all':38} {sum(module.lines for module in modules):7,}")
    for feature in FEATURES:
        print(f"  {feature:36} {sum(module.lines for module in modules if module.feature == feature):7,}")
    return int(check and any(figure > limit for figure, limit in found.values()))


if __name__ == "__main__":
    sys.exit(main())
