"""Prints requirements named in pyproject.toml, one word each: what the library itself needs, then ``build`` for the build system,
the name of an extra, or of a dependency group. ``--only`` leaves out what the library itself needs.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
groups = {
    "build": project["build-system"]["requires"],
    "run": project["project"]["dependencies"],
    **project["project"]["optional-dependencies"],
    **project["dependency-groups"],
}
names = sys.argv[2:] if sys.argv[1:2] == ["--only"] else ["run", *sys.argv[1:]]
for name in names:
    print(*(requirement.replace(" ", "") for requirement in groups[name]))
