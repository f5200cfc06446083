"""Conversations as text by a chat template, and where in that text the assistant speaks.

A chat template is a Jinja template that came with a model: a program of strangers, on data of strangers. It runs in Jinja's
immutable sandbox, with these limits besides:

* no file can be included, imported or extended
* the only functions, filters and methods are those of the tables here
* everything that repeats or grows something (loops, calls, filters, operators) is charged for it, and every conversation has a
  fixed budget: work, memory and output are bounded

What the assistant says is what ``{% generation %}`` ... ``{% endgeneration %}`` encloses. Random markers are written around it,
found in the text and removed again; the text must then be the one that the template writes without them. A template without that
tag is applied to the messages before each message of the assistant and to those up to it: what the latter text has more than the
former, with its generation prompt, is what the assistant says.

Imported when it is used, because Jinja may be missing.
"""

import hashlib
import json
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import chain
from pathlib import Path
from string import Formatter
from typing import Any, cast

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import do_indent
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from penstock.errors import FormatError, MissingError
from penstock.system import is_directory, is_there, reading
from penstock.tokenizer import TextTokenizer

__all__ = ["ChatTemplate", "load_chat_template"]

CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
MOST_TEMPLATE_BYTES = 1 << 20
MOST_CHARACTERS = 1 << 26
"""What one conversation may become."""
SPARE = 1 << 24
PER_CHARACTER = 256
"""A conversation may spend SPARE, and so much for every character that it has."""
TURN = 16
"""What a turn of a loop costs, besides the text it writes."""
NESTED = 64
"""What a list or a mapping costs where it is written or compared, besides its items."""
MOST_INDENT = 64
MOST_BITS = 4096
"""Of numbers that are multiplied."""

NOW = "strftime_now"
"""A function for today's date that some templates expect."""
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
WRITING = ("capitalize", "e", "escape", "forceescape", "lower", "safe", "string", "title", "trim", "truncate", "upper", "wordcount")
"""Filters that make a text of whatever they are given."""
FILTERS = (
    *("abs", "attr", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items", "last", "length", "list"),
    *("map", "max", "min", "reject", "rejectattr", "reverse", "round", "select", "selectattr", "sort", "sum", "unique"),
)
LAZY = frozenset(("first", "list", "map", "reject", "rejectattr", "select", "selectattr"))
"""Filters that go over what they are given, item by item."""
COMPARING = frozenset(("dictsort", "groupby", "max", "min", "sort", "sum", "unique"))
"""Filters that compare, hash or add up items, with all that is in them."""
GROWING = frozenset(("center", "encode", "expandtabs", "format", "format_map", "ljust", "rjust", "to_bytes", "translate", "zfill"))
"""Methods that make a lot of a little."""

Messages = Sequence[Mapping[str, Any]]
Span = tuple[int, int]


def load_chat_template(what: str | os.PathLike[str] | bool, tokenizer: TextTokenizer) -> "ChatTemplate":
    """The template of a file, or the text itself; for True, the one next to the tokenizer's file.

    Special tokens that it names are those of the tokenizer_config.json there.
    """
    config = _config(tokenizer)
    text = _own(config, tokenizer) if isinstance(what, bool) else _given(what)
    return ChatTemplate(text, {name: _token(config[name]) for name in SPECIAL if config.get(name) is not None})


def _next_to(tokenizer: TextTokenizer, name: str) -> Path | None:
    if tokenizer.name is None:
        return None
    path = Path(tokenizer.name)
    found = (path if is_directory(path) else path.parent) / name
    return found if is_there(found) else None


def _config(tokenizer: TextTokenizer) -> Mapping[str, Any]:
    path = _next_to(tokenizer, CONFIG)
    if path is None:
        return {}
    with reading(path):
        raw = path.read_bytes()
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: expected JSON, found something else ({error})") from error
    if not isinstance(found, dict):
        raise FormatError(f"{path}: expected a JSON object, found a {type(found).__name__}")
    return found


def _own(config: Mapping[str, Any], tokenizer: TextTokenizer) -> str:
    """The template that came with a tokenizer: in a file of its own, or in its configuration, where several may have names."""
    path = _next_to(tokenizer, TEMPLATE)
    if path is not None:
        return _read(path)
    found = config.get("chat_template")
    if isinstance(found, list):
        found = next((one.get("template") for one in found if isinstance(one, dict) and one.get("name") == "default"), None)
    if not isinstance(found, str):
        where = "the tokenizer, which is no file," if tokenizer.name is None else tokenizer.name
        raise MissingError(f"expected a {TEMPLATE} or a {CONFIG} with a chat template next to {where} found none: give its path")
    return found


def _given(what: str | os.PathLike[str]) -> str:
    if isinstance(what, str) and ("{%" in what or "{{" in what):
        return what
    return _read(Path(what))


def _read(path: Path) -> str:
    with reading(path), path.open("rb") as file:
        raw = file.read(MOST_TEMPLATE_BYTES + 1)
    if len(raw) > MOST_TEMPLATE_BYTES:
        raise FormatError(f"{path}: expected a chat template of at most {MOST_TEMPLATE_BYTES} bytes, found a larger file")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: expected a text in UTF-8: {error}") from error


def _token(value: object) -> str:
    """A special token of a configuration: its text, or an object with it."""
    found = value.get("content") if isinstance(value, dict) else value
    if not isinstance(found, str):
        raise FormatError(f"{CONFIG}: expected special tokens as texts, found {value!r}")
    return found


FAILURES = (TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError)
"""What a template may raise."""


class ChatTemplate:
    """A compiled template. Safe to use from several threads; pickled, it is its text."""

    def __init__(self, text: str, tokens: Mapping[str, str]) -> None:
        self._text, self._tokens = text, dict(tokens)
        self._environment = _Environment()
        try:
            with self._environment.spending(SPARE):  # constants are computed now
                tree = self._environment.parse(text)
                self._template = self._environment.from_string(text)
        except (TemplateError, RecursionError, TypeError) as error:
            raise ValueError(f"the chat template cannot be used: {_reason(error)}") from error
        self._has_tag = self._environment.has_tag
        unknown = sorted(set(SPECIAL) & find_undeclared_variables(tree) - set(tokens))
        if unknown:
            raise ValueError(f"the chat template needs {', '.join(unknown)}: put the {CONFIG} that has them next to the tokenizer")

    def __reduce__(self) -> tuple[Any, ...]:
        return ChatTemplate, (self._text, self._tokens)

    @property
    def sha256(self) -> str:
        """The digest of the template and of the special tokens it is given."""
        return hashlib.sha256(json.dumps([self._text, sorted(self._tokens.items())]).encode()).hexdigest()

    def render(self, messages: Messages) -> tuple[str, list[Span]]:
        """A conversation as text, and the characters [from, to) of what the assistant says; ValueError if it cannot be told."""
        try:
            return self._by_tag(messages) if self._has_tag else self._by_prefixes(messages)
        except FAILURES as error:
            raise ValueError(f"the chat template failed: {_reason(error)}") from error

    def _by_tag(self, messages: Messages) -> tuple[str, list[Span]]:
        text = self._apply(messages)
        pieces, depth, place, begin = self._environment.split(self._apply(messages, marks=True)), 0, 0, 0
        spans = list[Span]()
        for number, piece in enumerate(pieces):
            if number % 2 == 0:
                place += len(piece)
                continue
            depth += 1 if piece == "<" else -1
            if piece == "<" and depth == 1:
                begin = place
            elif depth == 0:
                spans.append((begin, place))
            elif depth < 0:
                break
        if depth != 0 or "".join(pieces[::2]) != text:
            raise ValueError(
                "the chat template changes what is in {% generation %} after it was written, so that it cannot be found again"
            )
        return text, spans

    def _by_prefixes(self, messages: Messages) -> tuple[str, list[Span]]:
        text, spans = self._apply(messages), list[Span]()
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._apply(messages[:number], prompt=True) if number else self._beginning()
            after = self._apply(messages[: number + 1])
            if not (after.startswith(before) and text.startswith(after)):
                raise ValueError(
                    f"what the assistant says in message {number} cannot be determined: the chat template writes what comes before "
                    "it, or the generation prompt, in another way when more follows; put {% generation %} and {% endgeneration %} "
                    "around what the assistant says, in the template"
                )
            spans.append((len(before), len(after)))
        return text, spans

    def _beginning(self) -> str:
        """What the template writes before the first message."""
        try:
            return self._apply([], prompt=True)
        except FAILURES as error:
            raise ValueError(
                f"what the assistant says in message 0 cannot be determined: the chat template fails without a message before it "
                f"({_reason(error)}); begin with another message, or put {{% generation %}} and {{% endgeneration %}} around what "
                "the assistant says, in the template"
            ) from error

    def _apply(self, messages: Messages, *, prompt: bool = False, marks: bool = False) -> str:
        size = sum(len(str(value)) for message in messages for value in message.values())
        with self._environment.spending(SPARE + PER_CHARACTER * size, marks=marks):
            pieces, length = [], 0
            for piece in self._template.generate(messages=list(messages), add_generation_prompt=prompt, **self._tokens):
                length += len(piece)
                if length > MOST_CHARACTERS:
                    raise SecurityError(f"expected at most {MOST_CHARACTERS} characters, got more")
                pieces.append(piece)
            return "".join(pieces)


def _reason(error: BaseException) -> str:
    why = " ".join(str(error).split())[:300] or type(error).__name__
    if NOW in why:
        why += ": tokens must not depend on the day they are made on; write a date into a copy of the template"
    return why


class _Generation(Extension):
    """The tag around what the assistant says."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

    def mark(self, caller: Callable[[], str]) -> str:
        """The text in the tag, between markers if they are wanted."""
        environment = self.environment
        assert isinstance(environment, _Environment)
        return environment.marked(caller())


class _Purse(threading.local):
    """What is left to spend, and whether markers are written; of the thread that renders."""

    left = 0
    marks = False


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, without functions that reach or repeat too much, and with a limit to what a template may do."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation], finalize=self.written
        )
        self._purse, self._nonce = _Purse(), secrets.token_hex(16)
        own = {"indent": self._indent, "join": self._join, "replace": self._replace, "tojson": self._tojson}
        kept = {name: self._charged(self.filters[name], writes=name in WRITING) for name in WRITING}
        kept |= {name: self._charged(self._going_over(name, self.filters[name]), writes=False) for name in FILTERS}
        self.filters = {**kept, **own}
        self.tests = {name: self._weighed(cast(Callable[..., Any], test)) for name, test in self.tests.items()}
        known = {name: self.globals[name] for name in ("range", "dict", "namespace")}
        self.globals = {**known, "raise_exception": _raise}
        self.has_tag = False

    # Limits

    @contextmanager
    def spending(self, most: int, *, marks: bool = False) -> Iterator[None]:
        """A block in which this thread may spend so much."""
        self._purse.left, self._purse.marks = most, marks
        try:
            yield
        finally:
            self._purse.left, self._purse.marks = 0, False

    def charge(self, size: int) -> None:
        """SecurityError if too much was done."""
        self._purse.left -= 1 + size
        if self._purse.left < 0:
            raise SecurityError("it takes too much work or memory for the conversation that it was given")

    def written(self, value: Any) -> Any:
        """A value that becomes a text, charged for it: the same item may be in it many times."""
        if isinstance(value, str):
            self.charge(len(value))
        elif isinstance(value, Mapping):
            self.charge(NESTED)
            for item in chain(value.keys(), value.values()):
                self.written(item)
        elif isinstance(value, list | tuple | set | frozenset):
            self.charge(NESTED)
            for item in value:
                self.written(item)
        else:
            self.charge(_length(value))
        return value

    def _charged(self, function: Callable[..., Any], *, writes: bool) -> Callable[..., Any]:
        @wraps(function)  # with the marks of Jinja that say what it is given first
        def charged(*args: Any, **options: Any) -> Any:
            for argument in args if writes else ():
                self.written(argument)
            made = function(*args, **options)
            self.charge(_length(made))
            return made

        return charged

    def _going_over(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that is charged for the items it takes."""
        place = 0 if getattr(function, "jinja_pass_arg", None) is None else 1

        @wraps(function)
        def going_over(*args: Any, **options: Any) -> Any:
            given = list(args)
            if name in COMPARING and isinstance(given[place], Iterator | range):
                given[place] = list(self._each(given[place]))
            if name in COMPARING:
                self.written(given[place])
            elif name in LAZY and isinstance(given[place], Iterator | range | Mapping | list | tuple | str):
                given[place] = self._each(given[place])
            return function(*given, **options)

        return going_over

    def _each(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.charge(TURN)
            yield item

    def _weighed(self, test: Callable[..., Any]) -> Callable[..., Any]:
        """A test, charged for what it may compare."""

        @wraps(test)
        def weighed(*args: Any, **options: Any) -> Any:
            first, *others = args
            return test(self.written(first), *map(self.searched, others), **options)

        return weighed

    def searched(self, value: Any) -> Any:
        """What something is looked for in, charged for all that may be compared; a mapping has its keys at hand."""
        if isinstance(value, Iterator):
            return self._each(value)
        if isinstance(value, range):
            self.charge(len(value))
        elif not isinstance(value, Mapping):
            self.written(value)
        return value

    def sliced(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """A slice, charged for its size."""
        made = value[start:stop:step]
        self.charge(_length(made))
        return made

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):
            self.written(argument)  # its hash goes over all that is in it
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            raise SecurityError("texts cannot be formatted with %")
        if operator == "**" and not _is_power_small(left, right):
            raise SecurityError("powers of such numbers cannot be used")
        if operator == "*" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() + right.bit_length() > MOST_BITS:
                raise SecurityError("such large numbers cannot be used")
        elif operator == "*":
            self.charge(max(_length(left) * _count(right), _length(right) * _count(left)))
        else:
            self.charge(_length(left) + _length(right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **options: Any) -> Any:
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str) and name == "join":
            return self._join(args[0], owner)
        if isinstance(owner, str) and name == "replace":
            return self._replace(owner, *args)
        if isinstance(owner, str | list | tuple):  # most methods go over all of it
            self.written(owner)
        if isinstance(owner, list | tuple | Mapping):  # they compare or hash what they are given
            self.written(args)
        made = super().call(context, obj, *args, **options)
        self.charge(TURN + _length(made))
        return made

    def wrap_str_format(self, value: Any) -> Any:
        """``format`` of texts, without widths, which can be of any size."""
        function = super().wrap_str_format(value)
        if function is not None and any(one[2] for one in Formatter().parse(value.__self__)):
            raise SecurityError("texts can be formatted only without widths and types")
        return None if function is None else self._charged(function, writes=True)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in GROWING and super().is_safe_attribute(obj, attr, value)

    def counted(self, items: Iterable[Any], cost: int) -> Iterator[Any]:
        """What a loop goes over, charged for every turn."""
        for item in items:
            self.charge(TURN + cost)
            yield item

    def joined(self, *parts: Any) -> str:
        """What ``~`` gives."""
        return "".join([str(self.written(part)) for part in parts])

    def _join(self, value: Iterable[Any], d: Any = "", attribute: str | None = None) -> str:
        items = list(value)
        for name in [] if attribute is None else str(attribute).split("."):
            items = [self.getitem(item, name) for item in items]
        between = str(self.written(d))
        self.charge(len(between) * len(items))
        return between.join([str(self.written(item)) for item in items])

    def _replace(self, s: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, before, after = (str(self.written(one)) for one in (s, old, new))
        self.charge(text.count(before) * len(after))
        return text.replace(before, after, -1 if count is None else count)

    def _indent(self, s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        text, by = str(self.written(s)), len(width) if isinstance(width, str) else width
        if by > MOST_INDENT:
            raise SecurityError(f"expected an indent of at most {MOST_INDENT}, got {by}")
        self.charge(by * (1 + len(text.splitlines())))
        return do_indent(text, width, first, blank)

    def _tojson(
        self, value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        """As the templates of models expect it: nothing is escaped for HTML."""
        if indent is not None and not 0 <= indent <= MOST_INDENT:
            raise SecurityError(f"expected an indent of at most {MOST_INDENT}, got {indent}")
        text = json.dumps(self.written(value), ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        self.charge(len(text))
        return text

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The tree of a template, in which loops, ``~``, slices and comparisons ask before they go on."""
        tree = cast(nodes.Template, _Asking(self._hook).visit(super()._parse(source, name, filename)))
        forbidden = next(tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block)), None)
        if forbidden is not None:
            raise SecurityError(f"line {forbidden.lineno}: {type(forbidden).__name__.lower()} is not allowed in it")
        for loop in list(tree.find_all(nodes.For)):
            if loop.recursive:
                raise SecurityError(f"line {loop.lineno}: recursive loops are not allowed in it")
            cost = sum(len(data.data) for data in loop.find_all(nodes.TemplateData))
            loop.iter = self._hook("counted", [cast(nodes.Expr, loop.iter), nodes.Const(cost)], loop.lineno)
        for concat in list(tree.find_all(nodes.Concat)):
            concat.nodes = [self._hook("joined", concat.nodes, concat.lineno)]
        calls = (block.call.node for block in tree.find_all(nodes.CallBlock))
        self.has_tag = any(isinstance(one, nodes.ExtensionAttribute) and one.identifier == _Generation.identifier for one in calls)
        return tree

    def _hook(self, name: str, arguments: list[nodes.Expr], line: int) -> nodes.Expr:
        made = nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)
        made.set_lineno(line)
        made.set_environment(self)
        return made

    # Markers

    def marked(self, text: str) -> str:
        """A text between markers, if they are wanted."""
        return f"[{self._nonce}<]{text}[{self._nonce}>]" if self._purse.marks else text

    def split(self, text: str) -> list[str]:
        """Pieces of text; every second one is a marker, < or >."""
        return re.split(rf"\[{self._nonce}([<>])\]", text)


class _Asking(NodeTransformer):
    """Comparisons, slices and keys that ask before they go over what they are given."""

    def __init__(self, hook: Callable[[str, list[nodes.Expr], int], nodes.Expr]) -> None:
        self._hook = hook

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 - as Jinja has it
        self.generic_visit(node)
        node.expr = self._hook("written", [node.expr], node.lineno)
        for operand in node.ops:
            operand.expr = self._hook("searched" if operand.op in ("in", "notin") else "written", [operand.expr], node.lineno)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = [nodes.Const(None) if one is None else one for one in (node.arg.start, node.arg.stop, node.arg.step)]
        return self._hook("sliced", [node.node, *bounds], node.lineno)

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = self._hook("written", [node.key], node.lineno)
        return node


def _length(value: object) -> int:
    """What a value takes, without what is in its items."""
    if isinstance(value, int):
        return value.bit_length() // 8
    return len(value) if isinstance(value, str | bytes | list | tuple | dict | set | frozenset) else 0


def _is_power_small(left: object, right: object) -> bool:
    """Whether a power is a float, or a number of few bits."""
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * abs(right) <= MOST_BITS
    return isinstance(left, int | float) and isinstance(right, int | float)


def _count(value: object) -> int:
    return max(0, value) if isinstance(value, int) else 0


def _raise(message: object) -> None:
    raise TemplateError(str(message))
