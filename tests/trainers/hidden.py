"""Makes packages look as if they were not installed that Lightning's metrics import where they are, and that no test here needs.

With transformers and scipy Lightning needs half as long again to start.
"""

import importlib.metadata
import sys

HIDDEN = ("transformers", "scipy")
_version = importlib.metadata.version


def version(name: str) -> str:
    if name in HIDDEN:
        raise importlib.metadata.PackageNotFoundError(name)
    return _version(name)


importlib.metadata.version = version
sys.modules.update(dict.fromkeys(HIDDEN))
