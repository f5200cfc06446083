"""What adapters ask of packages, of fields and of loaders before a run begins, with errors that say what to do."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from penstock.loader import Loader

__all__ = ["check_fields", "for_evaluation", "for_training", "importing"]


@contextmanager
def importing(what: str, line: str, *packages: str) -> Iterator[None]:
    """Around imports of ``packages``: ImportError with the line that installs them where they are missing.

    What a package itself lacks is told as it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in packages:
            raise
        raise ImportError(f"{what}: {line}") from error


def check_fields(what: str, found: Collection[str], needed: Sequence[str], also: str = "") -> None:
    """ValueError if packs lack fields; ``also``: further arguments of ``pack``."""
    missing = [name for name in needed if name not in found]
    if missing:
        raise ValueError(f"the {what} has no field {', '.join(missing)}: use pack(..., fields={tuple(needed)}{also})")


def for_training(loader: Loader) -> Loader:
    """The loader; ValueError if it would give the same batches again."""
    if loader.restart:
        raise ValueError("the loader has restart=True and would train on its first batches again: leave restart out")
    return loader


def for_evaluation(loader: Loader) -> Loader:
    """The loader; ValueError if every evaluation would see other records."""
    if not loader.restart:
        raise ValueError("a loader for evaluation needs restart=True: without it every evaluation would see other records")
    return loader
