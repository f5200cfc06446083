"""Builds the site of the docs, and fails if that gives a warning, a page is missing, or a page would fetch something."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tools.docs.pages import MARK

DOCS, SITE = Path("docs"), Path("out/site")
FETCHED = re.compile(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="(?:https?:)?//[^"]*"')


def main() -> None:
    """Build, then look at every page."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(SITE)]
    subprocess.run(command, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    pages = list(SITE.glob("**/*.html"))
    expected = len(list(DOCS.glob("**/*.md"))) + 1  # and a page for what is not found
    if len(pages) != expected:
        sys.exit(f"expected {expected} pages, found {len(pages)}")
    for page in pages:
        text = page.read_text()
        if found := FETCHED.findall(text) or MARK.findall(text):
            sys.exit(f"{page}: {found[:3]}")


if __name__ == "__main__":
    main()
