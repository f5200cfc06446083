"""Conversations into tokens with loss masks: templates of models, what is masked, and templates that mean harm."""

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.effort import every
from tests.text import trained
from tokenizers import Tokenizer, processors

import penstock as pen
from penstock.conversion.chat import ChatTemplate
from penstock.conversion.record_map import mark
from penstock.errors import FormatError, MissingError, SchemaMismatchError
from penstock.source import Converted, Tokenize

TAGGED = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message.role == 'assistant' -%}
{%- generation %}{{ message['content'] | trim + '<|im_end|>' }}{% endgeneration %}
{%- else -%}
{{ message['content'] + '<|im_end|>' }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
PLAIN = TAGGED.replace("{%- generation %}", "").replace("{% endgeneration %}", "")

CHAT = [
    {"role": "user", "content": "the cat"},
    {"role": "assistant", "content": " sat"},
    {"role": "user", "content": "日本語 ate"},
    {"role": "assistant", "content": "the mat 🎉"},
]
TEXT = (
    "<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\nsat<|im_end|>\n"
    "<|im_start|>user\n日本語 ate<|im_end|>\n<|im_start|>assistant\nthe mat 🎉<|im_end|>\n"
)
START, END = 2, 3


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return trained()


def said(template: str, messages: list[dict[str, Any]], **tokens: str) -> tuple[str, list[str]]:
    text, spans = ChatTemplate(template, tokens).render(messages)
    return text, [text[begin:end] for begin, end in spans]


# What the assistant says


def test_the_tag_encloses_what_the_assistant_says() -> None:
    assert said(TAGGED, CHAT) == (TEXT, ["sat<|im_end|>", "the mat 🎉<|im_end|>"])


def test_without_the_tag_it_is_what_follows_the_generation_prompt() -> None:
    assert said(PLAIN.replace(" | trim", ""), CHAT[2:]) == (TEXT[TEXT.index("<|im_start|>user\n日") :], ["the mat 🎉<|im_end|>\n"])
    assert said(PLAIN, CHAT) == (TEXT, ["sat<|im_end|>\n", "the mat 🎉<|im_end|>\n"])


def test_a_template_that_writes_earlier_turns_in_another_way_is_refused() -> None:
    """As those do that leave out the thoughts of all but the last turn."""
    template = PLAIN.replace("message['content'] | trim", "(message['content'] if loop.last else '...') | trim")
    assert said(template, CHAT[:2])[1] == ["sat<|im_end|>\n"]
    with pytest.raises(ValueError, match=r"message 1 cannot be determined: .* put {% generation %}"):
        said(template, CHAT)


@pytest.mark.parametrize(
    "harm",
    [
        "{% set x %}a{% generation %} b {% endgeneration %}{% endset %}{{ x | upper }}",
        "{% set x %}a{% generation %} b {% endgeneration %}{% endset %}{{ x[:3] }}",
        "{% set x %}a{% generation %} b {% endgeneration %}{% endset %}{{ x | length }}",
        "{% set x %}{% generation %} b {% endgeneration %}{% endset %}{{ x | trim }}",
    ],
)
def test_a_template_that_changes_what_it_has_tagged_is_refused(harm: str) -> None:
    with pytest.raises(ValueError, match=r"changes what is in {% generation %}"):
        said(harm, CHAT)


def test_tags_may_be_in_tags_and_empty() -> None:
    assert said("a{% generation %}b{% generation %}c{% endgeneration %}{% endgeneration %}d", []) == ("abcd", ["bc"])
    text, spans = ChatTemplate("a{% generation %}{% endgeneration %}b", {}).render([])
    assert (text, spans) == ("ab", [(1, 1)])


def test_a_template_is_pickled_as_its_text() -> None:
    made = ChatTemplate(TAGGED, {"bos_token": "<bos>"})
    again = pickle.loads(pickle.dumps(made))
    assert again.sha256 == made.sha256 != ChatTemplate(TAGGED, {}).sha256
    assert again.render(CHAT) == made.render(CHAT)


def test_habits_of_the_templates_of_models() -> None:
    template = (
        "{{ bos_token }}{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.content is none %}{% continue %}{% endif %}"
        "{% set ns.n = ns.n + 1 %}{{ ns.n ~ ':' ~ m.content.split(' ')[0].upper() }}{% if not loop.last %}|{% endif %}{% endfor %}"
        "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('+') }}"
        "{{ messages[0] | tojson }}{{ ('a', 'b').index('b') if false else messages | length }}"
        "{% if strftime_now is defined %}never{% endif %}{{ '<{}|{x}>'.format(7, x='y') }}{{ 'a-b'.replace('-', '+') }}"
    )
    messages = [{"role": "user", "content": "a <b> é"}, {"role": "assistant", "content": None}, {"role": "user", "content": "c d"}]
    text = '<bos>1:A|2:Ca <b> é+c d{"role": "user", "content": "a <b> é"}3<7|y>a+b'
    assert ChatTemplate(template.replace("messages |", "messages|"), {"bos_token": "<bos>"})._apply(messages) == text


# Masks


def test_tokens_of_what_the_assistant_says_count(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """By hand: the mask is 1 exactly for the tokens of "sat", "the mat 🎉" and the ends of these turns."""
    pen.convert({"messages": [json.dumps(CHAT)]}, tmp_path / "a.pen", tokenizer=Tokenize(tokenizer, chat_template=TAGGED))
    with pen.open(tmp_path / "a.pen") as data:
        record = data[0]
    ids, mask = record["tokens"].tolist(), record["loss_mask"].tolist()
    assert ids == tokenizer.encode(TEXT, add_special_tokens=False).ids
    expected = []
    for content, counts in (("user\nthe cat", 0), ("sat", 1), ("user\n日本語 ate", 0), ("the mat 🎉", 1)):
        expected.append((START, 0))
        if counts:
            expected += [(token, 0) for token in tokenizer.encode("assistant\n").ids]
        expected += [(token, counts) for token in tokenizer.encode(content).ids] + [(END, counts)]
        expected += [(token, 0) for token in tokenizer.encode("\n").ids]
    assert list(zip(ids, mask, strict=True)) == expected


@pytest.mark.parametrize(
    ("begin", "end", "mask"),
    [
        (0, 2, [1, 0, 0, 0]),
        (2, 5, [0, 1, 1, 0]),
        (1, 3, [1, 1, 0, 0]),  # tokens that are partly in it count
        (5, 9, [0, 0, 0, 1]),
        (3, 3, [0, 0, 0, 0]),
        (2, 6, [0, 1, 1, 1]),
    ],
)
def test_tokens_that_reach_into_a_span_are_marked(begin: int, end: int, mask: list[int]) -> None:
    found = np.zeros(4, np.uint8)
    mark(found, np.array([[0, 2], [2, 5], [5, 5], [5, 9]]), begin, end)  # the third is a trimmed space
    assert found.tolist() == mask


@pytest.mark.parametrize("trims", [False, True])
def test_spaces_at_the_end_of_what_the_assistant_says_count(tmp_path: Path, tokenizer: Tokenizer, trims: bool) -> None:
    """Also where the tokenizer leaves spaces out of its offsets, as that of RoBERTa does."""
    made = Tokenizer.from_str(tokenizer.to_str())
    made.post_processor = processors.ByteLevel(trim_offsets=trims)
    template = "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    template += "{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
    chat = [{"role": "user", "content": "cat  "}, {"role": "assistant", "content": " the  "}]
    pen.convert({"messages": [json.dumps(chat)]}, tmp_path / "a.pen", tokenizer=Tokenize(made, chat_template=template))
    record = pen.open(tmp_path / "a.pen")[0]
    user, assistant = (len(tokenizer.encode(message["content"]).ids) for message in chat)
    assert record["loss_mask"].tolist() == [0] * (user + 1) + [1] * assistant + [0]


def test_masks_go_next_to_the_tokens_of_datatrove_and_olmo(tmp_path: Path, tokenizer: Tokenizer) -> None:
    chats = [CHAT, CHAT[:1], CHAT[:2], []]
    table = pa.table({"messages": pa.array(chats, pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])))})
    pq.write_table(table, tmp_path / "a.parquet")
    how = Tokenize(tokenizer, chat_template=TAGGED)
    made = [pen.convert(tmp_path / "a.parquet", tmp_path / name, tokenizer=how) for name in ("a.pen", "a.ds", "x.npy")]
    with pen.open(tmp_path / "a.pen") as store, pen.open(tmp_path / "a.ds") as files:
        assert len(store) == len(files) == 4
        tokens, masks = store["tokens"][:], store["loss_mask"][:]
        assert [one.tolist() for one in files["tokens"][:]] == [one.tolist() for one in tokens]
        assert [one.tolist() for one in files["loss_mask"][:]] == [one.tolist() for one in masks]
        assert store.metadata["tokenizer"]["chat_template"] == ChatTemplate(TAGGED, {}).sha256
    assert np.fromfile(tmp_path / "x.npy", "u2").tolist() == tokens.values.tolist()
    assert np.fromfile(tmp_path / "labels_mask_x.npy", np.bool_).tolist() == [value == 1 for value in masks.values.tolist()]
    count = len(tokens.values)
    assert made == [Converted(4, count, 2 * count, int(masks.values.sum()))] * 3
    assert masks.lengths.tolist() == tokens.lengths.tolist()
    assert masks[1].tolist() == [0] * len(tokens[1])


def test_missing_conversations_stay_missing_in_a_store(tmp_path: Path, tokenizer: Tokenizer) -> None:
    how = Tokenize(tokenizer, chat_template=TAGGED)
    pen.convert({"messages": [None, json.dumps(CHAT), None]}, tmp_path / "a.pen", tokenizer=how)
    with pen.open(tmp_path / "a.pen") as data:
        assert [one is None for one in data["tokens"][:]] == [one is None for one in data["loss_mask"][:]] == [True, False, True]
    with pytest.raises(SchemaMismatchError, match="record 2: the text is missing"):
        pen.convert({"messages": [json.dumps(CHAT)] * 2 + [None]}, tmp_path / "a.ds", tokenizer=how)


# Where templates come from


def test_a_template_of_the_tokenizer_is_found_next_to_it(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    data = {"messages": [json.dumps(CHAT)]}

    def converted(name: str, what: Any = True) -> list[int]:
        pen.convert(data, tmp_path / name, tokenizer=Tokenize(tmp_path / "tokenizer.json", chat_template=what))
        with pen.open(tmp_path / name) as made:
            return [int(token) for token in made[0]["tokens"]]

    with pytest.raises(MissingError, match=r"chat_template\.jinja or a tokenizer_config\.json"):
        converted("none.pen")
    template = "{{ bos_token }}" + TAGGED
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": template}]
    ids = tokenizer.encode("<bos>" + TEXT, add_special_tokens=False).ids
    for number, found in enumerate((template, named)):
        config = {"bos_token": {"content": "<bos>", "lstrip": False}, "eos_token": None, "chat_template": found}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        assert converted(f"{number}.pen") == ids
    (tmp_path / "other.jinja").write_text("{{ bos_token }}" + PLAIN)
    assert converted("other.pen", tmp_path / "other.jinja") == ids
    (tmp_path / "chat_template.jinja").write_text("{% generation %}{{ messages[1].content }}{% endgeneration %}")
    assert converted("own.pen") == tokenizer.encode(" sat").ids


def test_without_jinja_the_error_says_how_to_install_it(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"this needs jinja2: pip install 'penstock\[text\]'"):
        pen.convert({"m": ["[]"]}, tmp_path / "a.pen", tokenizer=Tokenize(tokenizer, chat_template=TAGGED))


def test_tokens_do_not_depend_on_the_day() -> None:
    with pytest.raises(ValueError, match="'strftime_now' is undefined: tokens must not depend on the day"):
        said("{{ strftime_now('%Y') }}", CHAT)


def test_templates_that_need_what_is_not_known_are_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"needs bos_token, eos_token: put the tokenizer_config\.json"):
        ChatTemplate("{{ bos_token }}{{ eos_token }}", {})
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for bad, message in ((b"{", "expected JSON"), (b"[]", "JSON object"), (b'{"bos_token": 3}', "as texts")):
        (tmp_path / "tokenizer_config.json").write_bytes(bad)
        with pytest.raises(FormatError, match=message):
            pen.convert({"m": ["[]"]}, tmp_path / "a.pen", tokenizer=Tokenize(tmp_path, chat_template=PLAIN))
    for bad, message in ((b"\xff{{", "UTF-8"), (b" " * (1 << 20) + b" ", "at most 1048576 bytes")):
        (tmp_path / "bad.jinja").write_bytes(bad)
        with pytest.raises(FormatError, match=message):
            pen.convert({"m": ["[]"]}, tmp_path / "a.pen", tokenizer=Tokenize(tokenizer, chat_template=tmp_path / "bad.jinja"))


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("not json", "expected messages as JSON"),
        ("7", "expected a list of messages, found a int"),
        ('[{"from": "human", "value": "x"}]', r"message 0: expected a role and a content, found \['from', 'value'\]"),
        ("[3]", "message 0: expected a role and a content, found int"),
        ("[" * 100_000, "expected messages as JSON"),
    ],
)
def test_what_is_no_conversation_is_refused_with_its_record(
    tmp_path: Path, tokenizer: Tokenizer, messages: str, message: str
) -> None:
    data = {"messages": [json.dumps(CHAT)] * 2 + [messages]}
    with pytest.raises(SchemaMismatchError, match=f"record 2: {message}"):
        pen.convert(data, tmp_path / "a.ds", tokenizer=Tokenize(tokenizer, chat_template=TAGGED))


def test_a_template_that_raises_is_told_with_its_record(tmp_path: Path, tokenizer: Tokenizer) -> None:
    template = "{% if messages | length > 2 %}{{ raise_exception('too many turns') }}{% endif %}" + PLAIN
    data = {"messages": [json.dumps(CHAT[:2]), json.dumps(CHAT)]}
    with pytest.raises(SchemaMismatchError, match="record 1: the chat template failed: too many turns"):
        pen.convert(data, tmp_path / "a.ds", tokenizer=Tokenize(tokenizer, chat_template=template))


@pytest.mark.parametrize("name", ["a.rox", "a.idx", "a.bin"])
def test_files_without_a_place_for_masks_are_refused(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    with pytest.raises(ValueError, match="cannot store the loss mask"):
        pen.convert({"m": ["[]"]}, tmp_path / name, tokenizer=Tokenize(tokenizer, chat_template=TAGGED))
    for options in ({"eos": 0}, {"special_tokens": False}):
        with pytest.raises(ValueError, match="a chat template writes"):
            Tokenize(tokenizer, chat_template=TAGGED, **options)  # type: ignore[arg-type]


# Templates that mean harm


LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"
TWINS = (
    "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(99) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
)
"""Two lists that are equal: 2^99 comparisons tell."""
TUPLES = "{% set ns = namespace(x=(1, 2)) %}{% for i in range(99) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}"
AGAIN = "{% for i in range(99999) %}"
BOMBS = {
    "repeat a text": "{{ 'a' * 10**9 }}",
    "repeat a list": "{% set x = [0] * 10**9 %}",
    "loop in loops": LOOPS,
    "loop in a macro": f"{{% macro f() %}}{LOOPS}{{% endmacro %}}{{{{ f() }}}}",
    "double by ~": "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "double by +": "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "double by filters": "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}",
    "square": "{% set ns = namespace(x=10) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "pad": "{{ 'a'.ljust(10**9) }}",
    "format": "{{ '{:>999999999}'.format(1) }}",
    "format of many": "{% set s = 'x' * 10000 %}{{ '{0}{0}'.format([[[s] * 1000] * 1000] * 1000) }}",
    "percent": "{{ '%999999999d' % 1 }}",
    "indent": "{{ 'a' | indent(10**9, true) }}",
    "indent of JSON": "{{ [1] | tojson(indent=10**9) }}",
    "join": "{{ (('x' * 100000) | list) | join('y' * 100000) }}",
    "join of a text": "{{ ('x' * 100000).join(range(99999) | map('string')) }}",
    "replace": "{% set s = 'x' * 10000 %}{{ s | replace('x', s) | replace('x', s) }}",
    "replace of a text": "{% set s = 'x' * 10000 %}{{ s.replace('x', s).replace('x', s) }}",
    "the same many times": "{% set s = 'x' * 10000 %}{{ [[[s] * 1000] * 1000] * 1000 }}",
    "the same as a text": "{% set s = 'x' * 10000 %}{{ ([[[s] * 1000] * 1000] * 1000) | string | length }}",
    "recursion": "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(9999) }}",
    "bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "compare": f"{TWINS}{{% if ns.x == ns.y %}}{{% endif %}}",
    "compare in a test": f"{TWINS}{{{{ [ns.x] | select('eq', ns.y) | list }}}}",
    "sort": f"{TWINS}{{{{ [ns.x, ns.y] | sort | length }}}}",
    "find in a list": f"{TWINS}{{{{ ns.x in [ns.y] }}}}",
    "index of a list": f"{TWINS}{{{{ [ns.x].index(ns.y) }}}}",
    "key of a dict": f"{TUPLES}{{% set x = {{ns.x: 1}} %}}",
    "key of a message": f"{TUPLES}{{{{ messages[0][ns.x] }}}}",
    "key of a method": f"{TUPLES}{{{{ messages[0].get(ns.x) }}}}",
    "slices": f"{{% set s = 'x' * 1000000 %}}{AGAIN}{{% set x = s[1:] %}}{{% endfor %}}",
    "find in a text": f"{{% set s = 'x' * 1000000 %}}{AGAIN}{{% if 'y' in s %}}{{% endif %}}{{% endfor %}}",
    "find by a method": f"{{% set s = 'x' * 1000000 %}}{AGAIN}{{% set x = s.find('y') %}}{{% endfor %}}",
    "add up": f"{AGAIN}{{% set x = range(99999) | sum %}}{{% endfor %}}",
    "first of many": f"{AGAIN}{{% set x = range(99999) | selectattr('imag') | first %}}{{% endfor %}}",
}
REACHES = {
    "classes": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ raise_exception.__globals__['os'] }}",
    "globals of a function": "{{ namespace.__init__.__globals__ }}",
    "files": "{% include '/etc/passwd' %}",
    "imports": "{% import '/etc/passwd' as x %}",
    "inheritance": "{% extends '/etc/passwd' %}",
    "changes": "{{ messages.append(1) }}",
    "functions of Jinja": "{{ lipsum(10) }}",
    "filters of Jinja": "{{ 'a' | center(10) }}",
    "attributes by filter": "{{ ('' | attr('__class__')).__mro__ }}",
}


@pytest.mark.parametrize("name", [*every(6, list(BOMBS)), *REACHES])
def test_a_template_that_means_harm_is_stopped(name: str) -> None:
    with pytest.raises(ValueError, match=r"the chat template (failed|cannot be used): "):
        ChatTemplate({**BOMBS, **REACHES}[name], {}).render(CHAT)


def test_what_data_says_is_not_a_template() -> None:
    messages = [{"role": "user", "content": "{{ 7 * 7 }}{% generation %}"}, {"role": "assistant", "content": "{% endgeneration %}"}]
    text, spoken = said(TAGGED, messages)
    assert "{{ 7 * 7 }}{% generation %}" in text
    assert spoken == ["{% endgeneration %}<|im_end|>"]


def test_long_conversations_are_within_the_limits() -> None:
    messages = [{"role": ("user", "assistant")[turn % 2], "content": "word " * 50} for turn in range(400)]
    template = (
        "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ m.content %}{% endfor %}{{ ns.t }}" + TAGGED
    )
    text, spoken = said(template, messages)
    assert len(spoken) == 200
    assert text.startswith("word " * 50 * 400)


def test_a_conversation_that_begins_with_the_assistant_is_told_apart_or_refused_with_the_remedy() -> None:
    messages = [{"role": "assistant", "content": "hello"}, {"role": "user", "content": "hi"}]
    plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    text, spans = ChatTemplate(plain, {}).render(messages)
    assert [text[low:high] for low, high in spans] == ["hello;"]
    looks_back = ChatTemplate("{% if messages[0].role == 'system' %}!{% endif %}" + plain, {})
    with pytest.raises(
        ValueError, match=r"in message 0 cannot be determined: .* begin with another message, or put \{% generation %\}"
    ):
        looks_back.render(messages)
    assert len(looks_back.render([messages[1], messages[0]])[1]) == 1
