"""Prints requirements named in pyproject.toml, one word each: ``build`` for the build system, or the name of an extra."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
groups = {
    "build": project["build-system"]["requires"],
    "run": project["project"]["dependencies"],
    **project["project"]["optional-dependencies"],
}
for name in ["run", *sys.argv[1:]]:
    print(*(requirement.replace(" ", "") for requirement in groups[name]))
