"""Optional libraries: imported when they are needed, with a useful message when they are not there."""

import importlib
from typing import Any

__all__ = ["need"]


def need(module: str, extra: str) -> Any:
    """The module, or an ImportError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {module.partition('.')[0]}: pip install 'penstock[{extra}]'") from error
