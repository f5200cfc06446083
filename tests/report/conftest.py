"""What holds for tests that draw."""

from typing import Any

import pytest

from penstock.report.page import Figure, draw_png


def open_fonts() -> None:
    """matplotlib keeps the fonts it has used open as long as the process lasts: they are opened before the first test."""

    def draw(figure: Any, narrow: bool) -> None:
        figure.text(0, 0, "a \U000f0000")  # the last one is in no font, so all of them are tried

    draw_png(Figure("a", "a", "a", draw))


@pytest.fixture(scope="session", autouse=True)
def fonts_are_open() -> None:
    open_fonts()
