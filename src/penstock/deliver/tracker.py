"""Throughput and waiting of a loader for W&B, MLflow and TensorBoard. Nothing of them is imported."""

import time
from typing import Any

from penstock.loader import Loader

__all__ = ["Metrics"]


class Metrics:
    """What a loader did since the last call, for a tracker. For one thread.

    * ``loader/batches_per_s``, ``loader/samples_per_s``, ``loader/bytes_per_s``   of this rank
    * ``loader/wait_share``   the part of the time that the trainer waited for batches; ``loader/wait_ms`` per batch
    * ``loader/epoch``

    Where torch's worker processes make the batches, the loader does not see what they do: then only batches are counted.

    >>> import numpy as np, penstock as pen
    >>> from penstock.deliver.tracker import Metrics
    >>> loader = pen.Loader(pen.open({"x": np.arange(100)}), batch_size=10)
    >>> metrics = Metrics(loader)
    >>> for batch in loader:
    ...     pass
    >>> sorted(metrics())[0], metrics.log(print)
    ('loader/batches_per_s', None)
    """

    def __init__(self, loader: Loader, *, prefix: str = "loader/") -> None:
        self._loader, self._prefix = loader, prefix
        self._seen, self._step, self._time = loader.stats(), loader.step, time.perf_counter()

    def __call__(self) -> dict[str, float]:
        """The figures since the last call; none if no batch was taken."""
        stats, step, now = self._loader.stats(), self._loader.step, time.perf_counter()
        before, steps, passed = self._seen, step - self._step, now - self._time
        self._seen, self._step, self._time = stats, step, now
        batches = stats.batches - before.batches
        found: dict[str, float] = {}
        if batches > 0 and passed > 0:
            wait_s = stats.wait_s - before.wait_s
            found = {
                "batches_per_s": batches / passed,
                "samples_per_s": (stats.samples - before.samples) / passed,
                "bytes_per_s": (stats.bytes - before.bytes) / passed,
                "wait_share": min(1.0, wait_s / passed),
                "wait_ms": 1000 * wait_s / batches,
                "epoch": self._loader.epoch,
            }
        elif steps > 0 and passed > 0:
            found = {"batches_per_s": steps / passed, "epoch": self._loader.epoch}
        return {self._prefix + name: float(value) for name, value in found.items()}

    def log(self, tracker: Any, *, step: int | None = None) -> None:
        """Send them, at the loader's step unless one is given.

        ``tracker`` is a run of W&B, the module ``mlflow`` (or what else has ``log_metrics``), a ``SummaryWriter`` of TensorBoard,
        or a function of a dict and a step.
        """
        found, step = self(), self._loader.step if step is None else step
        if not found:
            return
        if hasattr(tracker, "add_scalar"):
            for name, value in found.items():
                tracker.add_scalar(name, value, step)
        elif hasattr(tracker, "log_metrics"):
            tracker.log_metrics(found, step=step)
        elif hasattr(tracker, "log"):
            tracker.log(found, step=step)
        elif callable(tracker):
            tracker(found, step)
        else:
            raise TypeError(f"expected a run of W&B, mlflow, a SummaryWriter or a function, got {type(tracker).__name__}")
