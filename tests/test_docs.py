"""Every snippet of the documentation and every docstring example runs and prints what it says."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import penstock

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
MODULES = [m.name for m in pkgutil.walk_packages(penstock.__path__, "penstock.") if not m.name.startswith("penstock._")]


def snippets(page: Path) -> list[doctest.Example]:
    """The doctest examples of all python blocks of a page, which share their variables."""
    text, inside = [], False
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            inside = line.strip() == "```python"
            line = ""
        text.append(line if inside else "")
    return doctest.DocTestParser().get_examples("\n".join(text))


def run(name: str, examples: list[doctest.Example], variables: dict[str, object], file: str) -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(doctest.DocTest(examples, variables, name, file, 0, None), out=report.append)
    assert runner.failures == 0, "".join(report)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path) -> None:
    run(page.name, snippets(page), {}, str(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_python_block_is_made_of_examples_that_run(page: Path) -> None:
    """A block without a prompt would look tested and not be."""
    blocks = page.read_text().split("```python\n")[1:]
    assert all(block.startswith(">>> ") for block in blocks)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module):
        run(test.name, test.examples, dict(test.globs), test.filename or name)
