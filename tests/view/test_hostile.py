"""A hostile data set can show ugly text in the page, and no more. See also check_in_chromium.py, which looks at it in a browser."""

import json
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest
from tests.view.hostile import CORPUS, hostile_source, hostile_tokenizer
from tests.view.serving import routes_of, serving

import penstock as pen

STATIC = {file.name: file.read_text() for file in (resources.files("penstock.view") / "static").iterdir()}
SCRIPTS = sorted(name for name in STATIC if name.endswith(".js"))
FORBIDDEN = (
    r"innerHTML",
    r"outerHTML",
    r"insertAdjacentHTML",
    r"document\.write",
    r"\beval\b",
    r"new Function",
    r"\bFunction\(",
    r"createContextualFragment",
    r"DOMParser",
    r"setHTML",
    r"srcdoc",
    r"\.on[a-z]+\s*=",
    r"setAttribute\(\s*[\"'`](on|style|href|src)",
    r"javascript:",
    r"https?://(?!www\.w3\.org/2000/svg)",
    r"setTimeout\(\s*[\"'`]",
    r"\bimport\(",
    r"postMessage",
    r"localStorage",
    r"\.cssText",
    r"Worker\(",
    r"document\.cookie",
    r"window\.open",
)


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_no_script_makes_code_or_markup_out_of_text(pattern: str) -> None:
    assert [name for name in SCRIPTS if re.search(pattern, STATIC[name])] == []


def test_the_patterns_would_notice() -> None:
    samples = [
        "a.innerHTML = b",
        "x.onclick = f",
        'a.setAttribute("onload", b)',
        "eval(x)",
        "new Function(x)",
        'fetch("https://evil.com")',
    ]
    assert all(any(re.search(pattern, sample) for pattern in FORBIDDEN) for sample in samples)
    assert len(SCRIPTS) >= 10


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] in ("script", "style"):
            self.inline += data.strip()


@pytest.mark.parametrize("name", ["index.html", "icon.svg"])
def test_pages_hold_no_code_and_name_no_other_place(name: str) -> None:
    page = Elements()
    page.feed(STATIC[name])
    assert page.inline == ""
    for tag, attributes in page.found:
        assert tag not in ("style", "iframe", "object", "embed", "base", "form")
        assert not [key for key in attributes if key.startswith("on") or key == "style"]
        for key in ("src", "href"):
            assert attributes.get(key) in (None, "app.js", "style.css", "icon.svg")


def test_the_style_asks_for_nothing_from_elsewhere() -> None:
    assert not re.search(r"url\(|@import|expression|behavior", STATIC["style.css"])


def test_imports_name_files_that_are_there() -> None:
    named = {name for script in SCRIPTS for name in re.findall(r'from "\./([^"]+)"', STATIC[script])}
    assert named | {"app.js"} == set(SCRIPTS)


def test_every_file_is_served_as_what_it_is() -> None:
    kinds = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
    with serving(routes_of(hostile_source())) as visitor:
        for name, text in STATIC.items():
            reply = visitor.get(name)
            assert (reply.status, reply.body) == (200, text.encode())
            assert reply.headers["Content-Type"] == f"{kinds[Path(name).suffix]}; charset=utf-8"


def test_the_corpus_is_sent_as_text_and_nothing_else() -> None:
    with serving(routes_of(hostile_source(), *CORPUS[:2])) as visitor:
        for path in (
            "api/about",
            f"api/records?count={len(CORPUS)}",
            "api/record/0",
            "api/batch?batch=8",
            "api/mix?field=2",
            "api/where/1",
        ):
            reply = visitor.get(path)
            assert reply.status == 200
            assert reply.headers["Content-Type"] == "application/json; charset=utf-8"
            assert b"<" not in reply.body
            assert reply.body.isascii()
        rows = visitor.json(f"api/records?count={len(CORPUS)}")["rows"]
        assert [row["cells"][0]["text"] for row in rows] == list(CORPUS)
        names = [field["name"] for field in visitor.json("api/about")["data"]["fields"]]
        assert set(CORPUS) - set(names) == {CORPUS[-1]}


def test_tokens_that_read_like_code_are_sent_as_text() -> None:
    with serving(routes_of(hostile_source(), tokenizer=hostile_tokenizer())) as visitor:
        reply = visitor.get(f"api/records?count={len(CORPUS)}")
        assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json; charset=utf-8")
        assert b"<" not in reply.body
        assert reply.body.isascii()
        cells = [row["cells"][4] for row in reply.json["rows"]]
        whole = visitor.json("api/record/2")["cells"][4]
    assert [cell["kind"] for cell in cells] == ["tokens"] * len(CORPUS)
    assert [cell["text"] for cell in cells[::3]] == list(CORPUS[::3])
    assert (whole["text"], whole["values"]) == (f"{CORPUS[2]}<999>{CORPUS[2]}", [2, 999, 2])


def test_bytes_leave_as_images_only_if_they_begin_like_one() -> None:
    with serving(routes_of(hostile_source())) as visitor:
        replies = [visitor.get(f"image/1/{number}") for number in range(len(CORPUS))]
    assert [reply.headers["Content-Type"] for reply in replies[2:4]] == ["image/gif", "image/png"]
    for reply in [*replies[:2], *replies[4:]]:
        assert (reply.status, reply.headers["Content-Type"]) == (404, "application/json; charset=utf-8")


def test_hostile_names_in_errors_are_text(tmp_path: Path) -> None:
    path = tmp_path / "<img src=x onerror=alert(1)>.pen"
    with pen.create(path, {"x": pen.Field("i4")}) as out:
        out.extend({"x": range(4)})
    with serving(routes_of(pen.open(path), str(path))) as visitor:
        assert visitor.json("api/about")["names"] == [path.name]
        for bad in ("api/mix?field=%3Cscript%3E", "api/records?%3Cscript%3E=1", "%3Cscript%3E", "api/batch?order=%3Cb%3E"):
            reply = visitor.get(bad)
            assert b"<" not in reply.body
            assert json.loads(reply.body).keys() == {"error"}
