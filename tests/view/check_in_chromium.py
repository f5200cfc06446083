"""The web page in a real browser: hostile data changes nothing, keys work, and screenshots of every panel go to out/view.

Needs Chromium (or another browser that takes its arguments): python -m tests.view.check_in_chromium [browser]; make view-check.
"""

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

from tests.view import panels
from tests.view.chromium import Browser, BrowserError, browsing, find_browser
from tests.view.hostile import CORPUS, MARK, hostile_source, hostile_tokenizer
from tests.view.serving import Visitor, routes_of, serving

PAGES = {
    "overview": "Fields",
    "records": "Go to id",
    "records?layout=table": "Go to id",
    "records?find=script&in=0": "6 found",
    "records?find=%3Cscript&in=1": "found",
    "records?find=onload&in=4": "found",
    "record/0": "When it comes",
    "record/2": "3 tokens, uint16",
    "record/2?order=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E": "order must be one of",
    "batch?step=1&batch=8": "steps an epoch",
    "order": "Class mix",
    "live": "Samples a second",
    "%3Cscript%3Ealert(1)%3C/script%3E": "Fields",
}
"""Each page, and words that are there once it is drawn."""
OUT = Path("out/view")
SIZES = (1200, 400)
OWN = re.compile(
    "html|head|meta|title|link|script|body|header|main|noscript|div|span|h1|h2|h3|nav|a|dl|dt|dd|section|table|thead|tbody|tr|th|td|p|"
    "code|strong|article|img|svg|polyline|button|label|input|select|option|figure|figcaption|canvas|ul|li|mark|kbd|dialog"
)
"""The elements of which the page is made."""


class Page(HTMLParser):
    """The elements of a page that has been drawn."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.feed(markup)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if not OWN.fullmatch(tag) or f"data-{MARK}" in given or any(name.startswith("on") for name in given):
            self.problems.append(f"<{tag} {given}>")
        if tag == "script" and given.get("src") != "app.js":
            self.problems.append(f"a foreign script {given}")
        for name, pattern in (("href", r"(#[a-z].*|style\.css|icon\.svg)"), ("src", r"(app\.js|image/\d+/\d+(\?.*)?)")):
            if given.get(name) is not None and not re.fullmatch(pattern, given[name] or ""):
                self.problems.append(f"{name}={given[name]!r}")


@contextmanager
def hostile_page() -> Iterator[Visitor]:
    with tempfile.TemporaryDirectory() as directory:
        figures = {"time_s": 1, "batches": 1, "samples": 1, "bytes": 1, "wait_s": 1, "busy_s": 1}
        line = {**figures, "advice": CORPUS[0], "network": CORPUS[1]}
        watched = Path(directory, CORPUS[4])
        watched.write_text("".join(json.dumps({**line, "busy_s": number, "time_s": number}) + "\n" for number in (1, 2, 3)))
        words = [text for text in CORPUS if "/" not in text]
        with serving(routes_of(hostile_source(), *words, watched=watched, tokenizer=hostile_tokenizer())) as visitor:
            yield visitor


class Checks:
    """What was looked at, and how much of it was wrong."""

    def __init__(self, browser: Browser) -> None:
        self.browser, self.wrong = browser, 0

    def tell(self, what: str, found: list[str]) -> None:
        self.wrong += len(found)
        print("\n  ".join([f"{'bad ' if found else 'good'} {what}", *found]), flush=True)  # noqa: T201

    def drawn(self, visitor: Visitor, page: str, words: str) -> list[str]:
        """What is wrong with a page that has been drawn: elements, complaints, requests to others, words that are not there."""
        browser = self.browser
        browser.requests.clear()
        browser.complaints.clear()
        try:
            browser.show(f"{visitor.server.guard.url}#{page}")
            browser.wait(f"document.body.innerText.toLowerCase().includes({json.dumps(words.lower())})")
        except BrowserError as error:
            return [str(error)]
        found = Page(browser.run("document.documentElement.outerHTML")).problems
        here = f"127.0.0.1:{visitor.server.server_port}"
        others = [url for url in browser.requests if not url.startswith("about:") and urlsplit(url).netloc != here]
        wide = browser.run("document.documentElement.scrollWidth - innerWidth")
        return [*found, *browser.complaints, *others, *([f"the page is {wide} pixels too wide"] if wide > 0 else [])]


def check_hostile(checks: Checks) -> None:
    checks.browser.look(1200)
    with hostile_page() as visitor:
        for page, words in PAGES.items():
            checks.tell(f"#{page}", checks.drawn(visitor, page, words))


def check_panels(checks: Checks) -> None:
    """Every panel, in both sizes and themes; the screenshots are for people."""
    for shown in panels.shown():
        with shown as (name, visitor, pages):
            for panel, (page, words) in pages.items():
                for width in SIZES:
                    for theme in ("light", "dark"):
                        checks.browser.look(width, dark=theme == "dark")
                        problems = checks.drawn(visitor, page, words)
                        checks.browser.photograph(OUT / f"{name}-{panel}-{width}-{theme}.png")
                        checks.tell(f"{name} {panel}, {width} pixels, {theme}", problems)


def check_keys(checks: Checks) -> None:
    browser = checks.browser
    browser.look(1200)
    with panels.pictures() as (_, visitor, _):
        for what, page, keys, condition in panels.KEYS:
            browser.show(f"{visitor.server.guard.url}#{page}")
            try:
                for key in keys:
                    browser.press(key)
                browser.wait(condition)
                checks.tell(f"keys {' '.join(keys)}: {what}", [])
            except BrowserError as error:
                checks.tell(f"keys {' '.join(keys)}: {what}", [str(error)])


def main() -> int:
    """Exit code 0 if all is well."""
    with browsing(sys.argv[1] if len(sys.argv) > 1 else find_browser()) as browser:
        checks = Checks(browser)
        check_hostile(checks)
        check_keys(checks)
        check_panels(checks)
    return min(1, checks.wrong)


if __name__ == "__main__":
    sys.exit(main())
