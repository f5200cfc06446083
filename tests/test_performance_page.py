"""The README shows the figures of the performance page, and no others."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- rivals:begin -->", "<!-- rivals:end -->"


def summary(page: Path) -> list[str]:
    """The lines of the first table between the markers."""
    made = page.read_text().partition(BEGIN)[2].partition(END)[0]
    lines = made.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| of LIMIT"))
    return [line for line in lines[first:] if line.startswith("|")][: lines[first:].index("") if "" in lines[first:] else None]


def test_the_table_of_the_readme_is_that_of_the_performance_page() -> None:
    shown = summary(ROOT / "README.md")
    assert shown == summary(ROOT / "docs" / "explanation" / "performance.md")
    assert len(shown) > 10
    assert any(line.startswith("| penstock") for line in shown)
