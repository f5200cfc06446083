"""Optional libraries: imported when they are needed, with a useful message when they are not there."""

import importlib
from typing import Any

__all__ = ["need"]

_PACKAGES = {"PIL": "pillow"}
"""Modules that come in packages of other names."""


def need(module: str, extra: str) -> Any:
    """The module, or an ImportError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"this needs {_PACKAGES.get(package, package)}: pip install 'penstock[{extra}]'") from error
