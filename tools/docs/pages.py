"""Hooks of mkdocs: what pages of the reference say about names and commands is read from the code when the site is built."""

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import typer.main
from rich.text import Text

MARK = re.compile(r"<!-- (signatures|commands)(?:: ([\w.]+))? -->")
MADE = re.compile(r"\b(made by|Make one with|Inherit)\b")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page: fills in what the page asks for."""
    return MARK.sub(lambda match: "\n".join(signatures(match[2]) if match[1] == "signatures" else commands()), markdown)


def signatures(module: str) -> Iterator[str]:
    """Every public name of a module, with its arguments in their order and their defaults."""
    names = importlib.import_module(module)
    yield "```python"
    for name in sorted(names.__all__, key=str.lower):
        for line in _signature(name, getattr(names, name)):
            yield textwrap.fill(line, 110, subsequent_indent=" " * 8)
    yield "```"


def _signature(name: str, value: Any) -> Iterator[str]:
    if not inspect.isroutine(value) and not isinstance(value, type):
        yield f"{name} = {value!r}"
    elif not isinstance(value, type):
        yield f"{name}{_arguments(value)}"
    else:
        bases = f"({', '.join(base.__name__ for base in value.__bases__)})" if issubclass(value, Exception) else ""
        yield f"class {name}{bases or _constructor(value)}"
        for own, made in vars(value).items():
            if isinstance(made, classmethod) and not own.startswith("_"):
                yield f"{name}.{own}{_arguments(getattr(value, own))}"


def _constructor(kind: type) -> str:
    """The arguments of a class, unless other functions make its objects."""
    return "" if inspect.isabstract(kind) or MADE.search(inspect.getdoc(kind) or "") else _arguments(kind)


def _arguments(value: Any) -> str:
    given = inspect.signature(value)
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in given.parameters.values() if one.name != "self"]
    return str(given.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def commands() -> Iterator[str]:
    """Every command of the program: what it does, arguments, options, examples."""
    from penstock.cli.main import app

    yield from _group(typer.main.get_command(app), "penstock")


def _group(group: Any, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _group(command, f"{path} {name}")
        else:
            yield from _command(command, f"{path} {name}")


def _command(command: Any, path: str) -> Iterator[str]:
    yield f"## `{path}`\n\n{_plain(command.help)}\n"
    shown = [one for one in command.params if not getattr(one, "hidden", False) and "--help" not in one.opts]
    words = " ".join(_word(one) for one in shown if one.param_type_name == "argument")
    has_options = any(one.param_type_name == "option" for one in shown)
    yield f"```text\n{path}{' [OPTIONS]' if has_options else ''}{words and f' {words}'}\n```\n"
    if shown:
        yield "| | | unless given |\n|---|---|---|"
        yield from map(_row, sorted(shown, key=lambda one: one.param_type_name))
        yield ""
    lines = _plain(command.epilog).split("\n\n")[1:]
    if lines:
        yield "```text\n" + "\n".join(lines) + "\n```\n"


def _word(argument: Any) -> str:
    return f"{argument.metavar or argument.name.upper()}{'...' if argument.nargs == -1 or argument.multiple else ''}"


def _row(one: Any) -> str:
    if one.param_type_name == "argument":
        names = f"`{_word(one)}`"
    else:
        value = "" if one.is_flag else f" {one.metavar or one.name.upper()}"
        names = ", ".join(f"`{name}`" for name in [*one.opts[1:], f"{one.opts[0]}{value}"])
        names += "".join(f", `{name}`" for name in one.secondary_opts)
    default = "" if one.default in (None, False, (), []) or callable(one.default) else f"`{one.default}`"
    cells = (names, _plain(getattr(one, "help", "")), "needed" if one.required else default)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _plain(text: str | None) -> str:
    """Help without the marks for colours."""
    return Text.from_markup(inspect.cleandoc(text or "")).plain.strip()
