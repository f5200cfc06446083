"""Runs the fast tests with the wheels in ``dist``, once for every Python that is here: ``make test-wheels``.

The tests are copied to a place without the sources of the library, so that the wheel is what they import. Fast tests are the files
that take at most a few seconds (``tests/durations.json``) and need no framework, no cluster and no compiler.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import wheels

SECONDS = 5
NEED_PROGRAMS = ("tests/cluster/", "tests/hostile/test_mutate_notes.py")
"""Start programs that import what is not installed here."""
NEEDS_MORE = re.compile(
    r"\b(torch|torchft|jax|ray|dask|lightning|accelerate|datasets|array_record|mypy|nanobind|mkdocs|seaweed|src)\b|importlib.metadata"
)
PACKAGES = (
    "fsspec",
    "h5py>=3.10",
    "hypothesis>=6.100",
    "jinja2>=3.1",
    "matplotlib>=3.8",
    "ml_dtypes",
    "pillow>=10",
    "pyarrow>=15",
    "pylance>=1",
    "pytest>=9",
    "pyyaml>=6",
    "safetensors>=0.4",
    "scipy>=1.11",
    "tensorstore>=0.1.60",
    "tokenizers>=0.20",
    "zarr>=3.1",
)


def fast_tests() -> list[str]:
    """The files of tests that run anywhere."""
    durations = json.loads((wheels.ROOT / "tests" / "durations.json").read_text())
    quick = [name for name, seconds in durations.items() if seconds <= SECONDS and (wheels.ROOT / name).exists()]
    quick = [name for name in quick if not name.startswith(NEED_PROGRAMS)]
    return [name for name in quick if not NEEDS_MORE.search((wheels.ROOT / name).read_text())]


def run(wheel: Path, python: str) -> str:
    """The last line of pytest."""
    inside = wheels.environment(python, wheels.BUILD / f"tests-{Path(python).name}", *PACKAGES)
    install = [inside, "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", wheel]
    subprocess.run([inside, "-m", "pip", "install", "--quiet", wheel], check=True)
    subprocess.run(install, check=True)
    with tempfile.TemporaryDirectory() as place:
        for name in ("tests", "tools", "bench", "docs", "examples", "pyproject.toml", "README.md", "CHANGELOG.md", "Makefile"):
            copy = shutil.copytree if (wheels.ROOT / name).is_dir() else shutil.copy
            copy(wheels.ROOT / name, Path(place) / name)
        command = [inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", *fast_tests()]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{wheel.name} on {python}:\n{done.stdout[-20_000:]}\n{done.stderr[-2_000:]}")
    return done.stdout.strip().splitlines()[-1]


def main() -> None:
    target = next(one for one in wheels.TARGETS if one.runs_here)
    for interpreter in wheels.INTERPRETERS:
        for wheel in sorted(wheels.DIST.glob(f"penstock-*-{interpreter.tag}-*-{target.platform}.whl")):
            for program in interpreter.runs:
                python = wheels.find(program)
                print(f"{wheel.name} on {program}: {'no such Python here' if python is None else run(wheel, python)}", flush=True)


if __name__ == "__main__":
    main()
