"""Checkpoints by Orbax: the state of a loader as one item, saved once, and restored on any number of processes."""

import json
from dataclasses import dataclass
from typing import Any, Protocol

import jax

from penstock.deliver.adapter import importing
from penstock.errors import StateError

with importing("penstock.deliver.orbax needs Orbax", "pip install orbax-checkpoint", "orbax"):
    import orbax.checkpoint as ocp

__all__ = ["LoaderHandler", "LoaderRestore", "LoaderSave"]

FILE = "penstock.json"


class Stateful(Protocol):
    """A loader, or what delivers its batches."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""

    def load_state_dict(self, state: Any) -> None:
        """Resume."""


class LoaderHandler(ocp.CheckpointHandler):  # type: ignore[misc]
    """Saves and restores a :class:`penstock.Loader`, or a delivery of one, as an item of an Orbax checkpoint.

    The state is the same in all processes, so the first one writes it and all read it. Their number may be another then.
    """

    def save(self, directory: Any, *rest: Any, args: "LoaderSave") -> None:
        """Write the state; it counts the batches that were given out until now."""
        if jax.process_index() == 0:
            (directory / FILE).write_text(json.dumps(args.item.state_dict()))

    def restore(self, directory: Any, *rest: Any, args: "LoaderRestore") -> Any:
        """Move the loader to where it was, and return it."""
        path = directory / FILE
        if not path.exists():
            raise StateError(f"the checkpoint has no state of a penstock loader: {path} does not exist")
        args.item.load_state_dict(json.loads(path.read_text()))
        return args.item

    def metadata(self, directory: Any) -> None:
        """There is none."""

    def finalize(self, directory: Any) -> None:
        """Nothing is left to do."""

    def close(self) -> None:
        """Nothing is open."""


@ocp.args.register_with_handler(LoaderHandler, for_save=True)
@dataclass
class LoaderSave(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """``Composite(data=LoaderSave(loader))``."""

    item: Stateful


@ocp.args.register_with_handler(LoaderHandler, for_restore=True)
@dataclass
class LoaderRestore(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """``Composite(data=LoaderRestore(loader))``."""

    item: Stateful
