"""Nothing that is read may be run: no pickle, no eval, no import by a name found in data."""

import ast
import re
from pathlib import Path

import penstock

ROOT = Path(penstock.__file__).parent
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "runpy", "code"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
ALLOWED = {
    ("demo.py", "np.load"),  # a checkpoint that it wrote itself, without pickle
    ("loader/make_batch.py", "pickle"),  # work sent to processes of the same run; never read from a file
    ("remote/objects.py", "pickle"),  # only dumps, for a digest of what a user's storage is
    ("testing/order_suite.py", "pickle"),  # round trips of objects that the tester made
    ("testing/order_suite.py", "eval"),
    ("testing/source_suite.py", "pickle"),
}
LATE_IMPORTS = {
    "__init__.py",
    "cli/main.py",
    "cli/options.py",
    "formats/open.py",
    "process.py",
    "records.py",
    "library.py",
}  # names from tables in the source, or typed by the user


WORDS = re.compile(
    rf"(?:import|from).*\b(?:{'|'.join(FORBIDDEN_MODULES)})\b|(?<![\w.])(?:{'|'.join(FORBIDDEN_CALLS)})\s*\(|import_module|(?:torch|np)\s*\.load"
)
"""One of these is in every file that has something to find."""


def found(path: Path) -> set[str]:
    names: set[str] = set()
    text = path.read_text()
    if WORDS.search(text) is None:
        return names
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names} & FORBIDDEN_MODULES
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module.partition(".")[0]} & FORBIDDEN_MODULES
        elif isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else None
            if called in FORBIDDEN_CALLS:
                names.add(str(called))
            if (
                isinstance(node.func, ast.Attribute)
                and node.func.attr == "load"
                and ast.unparse(node.func) in ("torch.load", "np.load")
            ):
                names.add(ast.unparse(node.func))
            if isinstance(node.func, ast.Attribute) and node.func.attr == "import_module":
                names.add("import_module")
    return names


def test_the_package_runs_nothing_that_it_reads() -> None:
    seen = {(str(path.relative_to(ROOT)), name) for path in ROOT.rglob("*.py") for name in found(path)}
    late = {(file, name) for file, name in seen if name == "import_module"}
    assert {file for file, _ in late} <= LATE_IMPORTS
    assert seen - late - ALLOWED == set()


def test_the_test_would_notice(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import pickle as p\nfrom yaml import load\neval('1')\ntorch.load('x')\nimportlib.import_module(name)\n"
    )
    assert found(tmp_path / "a.py") == {"pickle", "yaml", "eval", "torch.load", "import_module"}
