"""The text of the package page: the README with absolute links. The build asks for it (see pyproject.toml)."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def absolute(text: str, repository: str) -> str:
    """Markdown whose links to files of the repository lead to its web page."""

    def link(match: re.Match[str]) -> str:
        return f"]({repository}/blob/main/{match[1]})"

    return re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", link, text)


def dynamic_metadata(_settings: Mapping[str, object], project: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """What scikit-build-core calls."""
    text = absolute((ROOT / "README.md").read_text(), project["urls"]["Repository"])
    return {"readme": {"content-type": "text/markdown", "text": text}}
