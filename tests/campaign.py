"""The tests that take a sample in every run, with everything: python -m tests.campaign [file ...] [arguments for pytest].

Properties are tried on 1000 examples, other ones each time. Without files: every file that takes a sample (it imports
``tests.effort``, or has the mark ``sampled``), tries properties (it imports ``hypothesis``) or inherits a suite of sources or of
orders (see ``conftest.py``).
"""

import re
import sys
from pathlib import Path

import pytest

SAMPLED = re.compile(
    r"^(?:from|import) (?:tests\.effort|hypothesis)\b|^from tests import effort\b|"
    r"\bpytest\.mark\.sampled\b|\b(?:Source|Remote|Order)Suite\b",
    re.MULTILINE,
)
PROFILE = ["--hypothesis-profile=campaign", "-o", "faulthandler_timeout=7200"]


def sampled() -> list[str]:
    """The files of tests that do more in a campaign."""
    return sorted(str(path) for path in Path("tests").rglob("test_*.py") if SAMPLED.search(path.read_text()))


if __name__ == "__main__":
    named = any(argument.startswith("tests") for argument in sys.argv[1:])
    sys.exit(pytest.main([*PROFILE, *sys.argv[1:], *([] if named else sampled())]))
