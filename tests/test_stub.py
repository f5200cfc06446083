"""The checked-in stub of the native module is what the module says of itself."""

import subprocess
import sys
from pathlib import Path

STUB = Path(__file__).parent.parent / "src" / "penstock" / "_core.pyi"


def test_stub_matches_the_module(tmp_path: Path) -> None:
    fresh = tmp_path / "_core.pyi"
    subprocess.run([sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "penstock._core", "-o", str(fresh)], check=True)
    assert STUB.read_text() == fresh.read_text(), "run `make stub`"
