"""The page: one file that runs nothing, asks nobody, and shows hostile names as text."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as pen
from penstock import report
from penstock.errors import StoreError
from penstock.order import BlockShuffle
from penstock.report.page import draw_svg

HOSTILE = "</title></svg><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x1b[31m\u202e\udc80 $\\frac{1$"


class Page(HTMLParser):
    """What a browser would do with a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.shown = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value or "")
            if name.rpartition(":")[2] in ("href", "src", "action", "data", "poster", "srcset", "background"):
                self.links.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)

    def handle_data(self, data: str) -> None:
        self.shown += data


def draw_names(figure: Any, narrow: bool) -> None:
    axes = figure.subplots()
    axes.set_title(HOSTILE)
    axes.plot([0, 1], [0, 1], label="a")
    axes.imshow(np.zeros((2, 2)))


@pytest.fixture(scope="module")
def page() -> str:
    figure = report.Figure("names", HOSTILE, HOSTILE, draw_names)
    table = report.Table((HOSTILE, "verdict"), [[HOSTILE, "good"]])
    hostile = report.Section(HOSTILE, HOSTILE, [report.Tile(HOSTILE, HOSTILE, HOSTILE)], [figure, table, HOSTILE])
    data = pen.open({"a": np.zeros((64, 8), np.uint8)})
    speed = report.measure_loader(lambda: pen.Loader(data.shuffle(seed=1), 8), seconds=0.05)
    mixing = report.measure_order(BlockShuffle(4096, block=64, window=2, seed=1), batch_size=32)
    sections = [hostile, speed.section(), mixing.section()]
    return report.make_page(sections, title=HOSTILE, command=HOSTILE, notes=[HOSTILE])


def test_nothing_on_the_page_can_run(page: str) -> None:
    found = Page(page)
    assert {"script", "iframe", "object", "embed", "form", "base", "link", "img", "foreignobject"}.isdisjoint(found.tags)
    assert found.handlers == []
    assert "javascript:" not in page.lower()


def test_the_page_asks_nobody_for_anything(page: str) -> None:
    links = Page(page).links
    assert links  # the uses of clip paths and images in figures are among them
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert all(inside.startswith("#") for inside in re.findall(r"url\(([^)]*)\)", page))
    assert "@import" not in page
    assert "http://" not in page
    assert "https://" not in page


def test_a_policy_forbids_what_the_page_does_not_need(page: str) -> None:
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none';")
    assert "script-src" not in policy[1]


def test_hostile_names_are_shown_as_text(page: str) -> None:
    shown = Page(page).shown
    assert shown.count("<script>alert(1)</script>") >= 12
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "\\x1b[31m\\u202e\\udc80" in shown


def test_ids_are_unique_and_what_is_referred_to_is_there(page: str) -> None:
    ids = Page(page).ids
    assert len(ids) == len(set(ids))
    wanted = {*re.findall(r"url\(#([^)]*)\)", page), *re.findall(r'href="#([^"]*)"', page)}
    assert wanted
    assert wanted <= set(ids)


def test_every_figure_is_there_wide_and_narrow(page: str) -> None:
    assert page.count('<div class="wide"><svg ') == page.count('<div class="narrow"><svg ') == 6


def test_the_colours_of_figures_follow_the_theme(page: str) -> None:
    figures = "".join(re.findall(r"<svg .*?</svg>", page, flags=re.DOTALL))
    assert "var(--blue)" in figures
    assert "#2c6aa0" not in figures
    assert "prefers-color-scheme: dark" in page


def test_a_label_of_two_lines_stays_one_of_two_lines() -> None:
    def draw(figure: Any, narrow: bool) -> None:
        figure.text(0, 0, "above\nbelow\x07")

    svg = draw_svg(report.Figure("a", "t", "c", draw), narrow=False, prefix="p")
    assert "\\n" not in svg
    assert ">above<" in svg
    assert ">below\\x07<" in svg


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    section = report.Section("empty")
    path = report.write_page(tmp_path / "a.html", [section], title="a")
    before = path.read_text()
    (tmp_path / "b").mkdir()
    with pytest.raises(StoreError, match="writing failed"):
        report.write_page(tmp_path / "b", [section], title="b")
    with pytest.raises(StoreError, match="writing failed"):
        report.write_page(tmp_path / "nowhere" / "c.html", [section], title="c")
    assert path.read_text() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.html", "b"]


def test_plots_are_png_files_of_their_names(tmp_path: Path) -> None:
    section = report.Section(
        "s", parts=[report.Figure("a", "t", "c", draw_names), "text", report.Figure("b", "t", "c", draw_names)]
    )
    paths = report.write_plots(tmp_path / "new" / "plots", [section])
    assert [path.name for path in paths] == ["a.png", "b.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG\r\n") for path in paths)


def test_without_matplotlib_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    section = report.Section("s", parts=[report.Figure("a", "t", "c", draw_names)])
    with pytest.raises(ImportError, match=re.escape("pip install 'penstock[plot]'")):
        report.write_page(tmp_path / "a.html", [section], title="a")
    assert list(tmp_path.iterdir()) == []


def test_importing_the_package_needs_neither_a_terminal_nor_matplotlib() -> None:
    heavy = {"typer", "rich", "matplotlib", "torch", "jax"}
    code = f"import sys, penstock.report; print({heavy} & {{m.split('.')[0] for m in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout == "set()\n"
