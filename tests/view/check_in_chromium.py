"""Looks at hostile data in a real browser: every page is drawn, and nothing in the data has run or become markup.

Needs Chromium (or another browser that takes its arguments), so it is run by hand: python -m tests.view.check_in_chromium [browser]
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path

from tests.view.hostile import CORPUS, MARK, hostile_source, hostile_tokenizer
from tests.view.serving import Visitor, routes_of, serving

PAGES = {
    "overview": "Fields",
    "records": "Go to id",
    "records?layout=table": "Go to id",
    "record/0": "When it comes",
    "record/2": "3 tokens, uint16",
    "record/2?order=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E": "order must be one of",
    "batch?step=1&batch=8": "steps an epoch",
    "order": "Class mix",
    "live": "Samples a second",
    "%3Cscript%3Ealert(1)%3C/script%3E": "Fields",
}
"""Each page, and words that are there once it is drawn."""
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--virtual-time-budget=5000", "--enable-logging=stderr", "--dump-dom",
)  # fmt: skip
OWN = re.compile(
    "html|head|meta|title|link|script|body|header|main|noscript|div|span|h1|h2|nav|a|dl|dt|dd|section|table|"
    "thead|tbody|tr|th|td|p|code|strong|article|img|svg|polyline|button|label|input|select|option|figure|figcaption|canvas|ul|li"
)
"""The elements of which the page is made."""


class Page(HTMLParser):
    """The elements of a page that has been drawn, and its text."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.words = ""
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

    def handle_data(self, data: str) -> None:
        self.words += data


@contextmanager
def hostile_page() -> Iterator[Visitor]:
    with tempfile.TemporaryDirectory() as directory:
        line = {
            "time_s": 1,
            "batches": 1,
            "samples": 1,
            "bytes": 1,
            "wait_s": 1,
            "busy_s": 1,
            "advice": CORPUS[0],
            "network": CORPUS[1],
        }
        watched = Path(directory, CORPUS[4])
        watched.write_text("".join(json.dumps({**line, "busy_s": number, "time_s": number}) + "\n" for number in (1, 2, 3)))
        words = [text for text in CORPUS if "/" not in text]
        with serving(routes_of(hostile_source(), *words, watched=watched, tokenizer=hostile_tokenizer())) as visitor:
            yield visitor


def check(browser: str, url: str, page: str, words: str) -> list[str]:
    """What is wrong with a page."""
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, *FLAGS, f"--user-data-dir={profile}", f"{url}#{page}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    found = Page(done.stdout)
    complaints = [
        line for line in done.stderr.splitlines() if ":CONSOLE" in line and "the server responded with a status of" not in line
    ]
    absent = [] if words in found.words else [f"{words!r} is not there: {found.words[:300]!r}"]
    return [*found.problems, *complaints, *absent]


def main() -> int:
    """Exit code 0 if all is well."""
    browser = sys.argv[1] if len(sys.argv) > 1 else next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), "chromium")
    wrong = 0
    with hostile_page() as visitor:
        for page, words in PAGES.items():
            found = check(browser, visitor.server.guard.url, page, words)
            wrong += len(found)
            print("\n  ".join([f"{'bad ' if found else 'good'} #{page}", *found]))  # noqa: T201
    return min(1, wrong)


if __name__ == "__main__":
    sys.exit(main())
