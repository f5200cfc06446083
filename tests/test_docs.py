"""Every snippet of the documentation and every docstring example runs and prints what it says; the site is complete."""

import doctest
import importlib
import inspect
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli import warm
from tests.effort import every, is_campaign
from tools.docs import pages as hooks
from tools.docs.docstring import as_markdown

import penstock
from penstock import errors
from penstock.remote.objects import close_all

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("**/*.md")])
OF_TRAINERS = {f"penstock.deliver.{name}" for name in ("grain", "lightning", "olmo_core", "orbax", "torchtitan")}  # make trainers
MODULES = [
    m.name
    for m in pkgutil.walk_packages(penstock.__path__, "penstock.")
    if not m.name.startswith("penstock._") and m.name not in OF_TRAINERS
]
REFERENCE = (DOCS / "reference" / "api.md").read_text()
PUBLIC = re.findall(r"<!-- signatures: ([\w.]+) -->", REFERENCE)
BUILD_S = 300
FIRST_PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("howto/**/*.md"))]
SNIPPET_COLUMNS = 88

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, kind: str) -> Iterator[tuple[int, list[str]]]:
    """The fenced blocks of one kind: the number of the first line, counted from 0, and the lines."""
    inside: list[str] | None = None
    for number, line in enumerate(page.read_text().splitlines()):
        if line.startswith("```"):
            if inside is not None:
                yield number - len(inside), inside
            inside = [] if inside is None and line.removeprefix("```").strip() == kind else None
        elif inside is not None:
            inside.append(line)


def snippets(page: Path) -> list[doctest.Example]:
    """The doctest examples of all python blocks of a page, which share their variables."""
    text = [""] * len(page.read_text().splitlines())
    for first, lines in blocks(page, "python"):
        text[first : first + len(lines)] = lines
    return doctest.DocTestParser().get_examples("\n".join(text))


def run(name: str, examples: list[doctest.Example], variables: dict[str, object], file: str) -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(doctest.DocTest(examples, variables, name, file, 0, None), out=report.append)
    assert runner.failures == 0, "".join(report)


# Snippets


@pytest.fixture(scope="module", autouse=True)
def warm_is_running() -> None:
    """The server of processes lasts as long as this one: it is started before the first test."""
    warm.address()


@pytest.fixture
def threads_end() -> Iterator[None]:
    """Those that ask a storage for the main thread."""
    yield
    close_all()


@pytest.mark.usefixtures("threads_end")
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one process is what is meant
@every_page
def test_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run(page.name, snippets(page), {}, str(page))


@every_page
def test_every_python_block_is_made_of_examples_that_run(page: Path) -> None:
    """A block without a prompt would look tested and not be."""
    assert all(lines[0].startswith(">>> ") for _, lines in blocks(page, "python"))


def fenced_lines(page: Path) -> Iterator[tuple[int, str]]:
    """The lines of all fenced blocks with their numbers, counted from 1."""
    is_inside = False
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if line.startswith("```"):
            is_inside = not is_inside
        elif is_inside:
            yield number, line


@pytest.mark.parametrize("page", FIRST_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_of_a_code_block_is_longer_than_88_columns(page: Path) -> None:
    """A longer line scrolls sideways on the site and on GitHub."""
    too_long = [f"{page.name}:{number}" for number, line in fenced_lines(page) if len(line) > SNIPPET_COLUMNS]
    assert not too_long


def test_commands_of_the_pages_run(tmp_path: Path) -> None:
    """Blocks of one page share a directory, which is empty at first."""
    with_commands = [page for page in PAGES if any(blocks(page, "sh {.run}"))]
    assert with_commands
    for number, page in enumerate(every(2, with_commands)):
        (tmp_path / str(number)).mkdir()
        run_commands("\n".join(line for _, lines in blocks(page, "sh {.run}") for line in lines), tmp_path / str(number))


def run_commands(commands: str, place: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    program = shlex.join([sys.executable, "-m", "penstock"] if is_campaign() else warm.client())
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", f'penstock() {{ {program} "$@"; }}\n{commands}'],
        cwd=place,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=BUILD_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("threads_end")
@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module):
        run(test.name, test.examples, dict(test.globs), test.filename or name)


# The site


def relative_links(page: Path) -> Iterator[str]:
    """What a page links to beside itself, without fragments."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:|#", target):
            yield target.partition("#")[0]


@every_page
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    missing = [target for target in relative_links(page) if not (page.parent / target).exists()]
    assert not missing


def test_every_page_is_in_the_navigation_once() -> None:
    settings = (ROOT / "mkdocs.yml").read_text()
    named = re.findall(r"^ +- .+: (\S+\.md)$", settings, flags=re.MULTILINE)
    assert sorted(named) == sorted(str(page.relative_to(DOCS)) for page in DOCS.glob("**/*.md"))


# The reference


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_on_the_page_of_the_reference(module: str) -> None:
    named = set(re.findall(r"^::: ([\w.]+)$", REFERENCE, flags=re.MULTILINE))
    shown = {id(_resolve(name)) for name in named}
    missing = [
        name
        for name in importlib.import_module(module).__all__
        if _is_code(module, name) and id(_resolve(f"{module}.{name}")) not in shown
    ]
    assert not missing


def _is_code(module: str, name: str) -> bool:
    """Functions and classes; errors have a page of their own."""
    value = getattr(importlib.import_module(module), name)
    is_error = isinstance(value, type) and issubclass(value, Exception)
    return (inspect.isroutine(value) or isinstance(value, type)) and not is_error


def _resolve(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("module", ["penstock", "penstock.order", "penstock.deliver.torch", "penstock.deliver.jax"])
def test_every_public_name_has_a_docstring_with_an_example(module: str) -> None:
    names = [name for name in importlib.import_module(module).__all__ if _is_code(module, name)]
    without = {name for name in names if ">>> " not in (inspect.getdoc(_resolve(f"{module}.{name}")) or "")}
    assert without == set()


def test_signatures_show_names_order_and_defaults() -> None:
    shown = "\n".join(hooks.signatures("penstock"))
    assert "class Loader(stream, batch_size=None, *, shard=None, tail='keep'," in shown
    assert "Field.ragged(dtype, ndim=1, *, codec=None, nullable=False)" in shown
    assert "class Source\n" in shown


def test_every_command_is_on_its_page_with_its_options_and_examples() -> None:
    from penstock.cli.main import ENTRIES, app

    shown = "\n".join(hooks.commands())
    registered = [one.name or one.callback.__name__.replace("_", "-") for one in app.registered_commands if one.callback]
    assert all(f"## `penstock {name}`" in shown for name in registered)
    assert "| `-s`, `--storage KEY=VALUE` |" in shown
    assert all(example in shown for entry in ENTRIES for example in entry.function().__dict__["examples"])


def test_docstrings_become_markdown() -> None:
    text = "See :class:`~penstock.Ragged`::\n\n    0 1\n\n>>> 1 + 1\n2\n\nMore."
    assert as_markdown(text) == "See `Ragged`:\n\n    0 1\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore."


def test_every_error_is_in_a_table_of_the_errors_page_once() -> None:
    rows = re.findall(r"^\| `(\w+Error)` \| [^|]+ \| [^|]+ \|$", (DOCS / "reference" / "errors.md").read_text(), flags=re.MULTILINE)
    assert sorted(rows) == sorted(set(errors.__all__) - {"PenstockError"})


def test_every_test_named_by_the_durability_page_is_there() -> None:
    named = re.findall(r"`(\S+\.py)::(\w+)`", (DOCS / "explanation" / "durability.md").read_text())
    missing = [
        (file, test)
        for file, test in named
        if not re.search(rf"^(def {test}\(|{test} = )", (ROOT / "tests" / file).read_text(), re.MULTILINE)
    ]
    assert len(named) > 40
    assert not missing
