"""Delivery to Lightning: a data module whose loaders are made where the ranks are known, and saved in Lightning's checkpoints."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.deliver.adapter import for_evaluation, for_training, importing
from penstock.deliver.torch import DataLoader, Delivery, deliver
from penstock.loader import Loader
from penstock.order import Shard
from penstock.trace import LossLog

with importing("penstock.deliver.lightning needs lightning", "pip install lightning", "lightning"):
    from lightning.pytorch import Callback, LightningDataModule

__all__ = ["Data", "LogLosses"]

Make = Callable[[Shard], Loader]
Makes = Make | Sequence[Make] | Mapping[str, Make]


class Data(LightningDataModule):  # type: ignore[misc]
    """Loaders for ``trainer.fit(model, datamodule=...)``, ``validate``, ``test`` and ``predict``.

    Each argument is a function of a :class:`penstock.Shard` that makes a loader, or several of them in a list or a dict, as
    Lightning takes them. Lightning calls them when the processes of all ranks run, so the shard is right with every launcher.

    * ``train``    its loader's state is saved in every checkpoint, and ``fit(ckpt_path=...)`` continues with the next batch
    * ``validation``, ``test``, ``predict``  their loaders need ``restart=True``: every evaluation sees the same records
    * ``workers``  worker processes that make the batches of ``train``; 0 lets the loader's threads do it

    >>> import numpy as np, penstock as pen
    >>> from penstock.deliver.lightning import Data
    >>> records = pen.open({"x": np.arange(10)})
    >>> data = Data(lambda shard: pen.Loader(records.shuffle(seed=7), 4, shard=shard, tail="drop"))
    >>> [len(batch["x"]) for batch in data.train_dataloader()]
    [4, 4]
    """

    def __init__(
        self,
        train: Makes | None = None,
        validation: Makes | None = None,
        *,
        test: Makes | None = None,
        predict: Makes | None = None,
        workers: int = 0,
    ) -> None:
        super().__init__()
        self._workers = workers
        made = {"train": train, "val": validation, "test": test, "predict": predict}
        for name, makes in made.items():
            if makes is not None:  # Lightning looks for the methods that a module has of its own
                setattr(self, f"{name}_dataloader", _function(makes, self._deliver if name == "train" else _evaluation))

    def _deliver(self, loader: Loader) -> Any:
        for_training(loader)
        if self._workers:
            return DataLoader(loader, num_workers=self._workers, persistent_workers=True)
        try:
            len(loader)
        except TypeError:
            return _Endless(loader)
        return deliver(loader)


class LogLosses(Callback):  # type: ignore[misc]
    """A callback that logs what ``training_step`` returns as ``losses``: ``{"loss": losses.mean(), "losses": losses}``.

    ``log`` is a :class:`penstock.LossLog` without a loader, which is that of the trainer. The losses are one per sample of this
    rank's batch, or per document of packs. What cannot be logged is counted and warned of, never raised.

    >>> from penstock.deliver.lightning import LogLosses
    >>> import penstock as pen
    >>> callback = LogLosses(pen.LossLog("runs/a"))
    """

    def __init__(self, log: LossLog, key: str = "losses") -> None:
        super().__init__()
        self.log_of_losses, self._key = log, key

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """The batch that was trained on is the one before the state of the delivery."""
        delivery = trainer.train_dataloader
        loader = getattr(delivery, "loader", None)
        if loader is None or not isinstance(outputs, Mapping) or self._key not in outputs:
            self.log_of_losses.miss(f"expected a penstock loader, and training_step to return a dict with {self._key!r}")
            return
        if not self.log_of_losses.follows(loader):
            self.log_of_losses.follow(loader)
        held = delivery.held if isinstance(delivery, _Endless) else 0
        self.log_of_losses(outputs[self._key], step=loader.step - 1 - held)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self.log_of_losses.close()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self.log_of_losses.close()


def _function(makes: Makes, delivered: Callable[[Loader], Any]) -> Callable[[], Any]:
    """What Lightning calls for the loaders of a stage."""

    def made() -> Any:
        if isinstance(makes, Mapping):
            return {name: delivered(_loader(make)) for name, make in makes.items()}
        return [delivered(_loader(make)) for make in makes] if isinstance(makes, Sequence) else delivered(_loader(makes))

    return made


def _loader(make: Make) -> Loader:
    shard = Shard.from_environment()
    loader = make(shard)
    if not isinstance(loader, Loader):
        raise TypeError(f"expected a function that makes a penstock Loader, got one that makes {type(loader).__name__}")
    if loader.shard != shard:
        raise ValueError(f"expected a loader with the shard it was given, {shard}, got {loader.shard}: pass shard=shard")
    return loader


def _evaluation(loader: Loader) -> Delivery:
    return deliver(for_evaluation(loader))


class _Endless(Delivery):
    """Of a stream without an end Lightning always holds one batch that it has not trained on. The state does not count it."""

    def __init__(self, loader: Loader) -> None:
        import torch

        super().__init__(loader, torch.device("cpu"), False, True)
        self._began: int | None = None

    def __iter__(self) -> Any:
        self._began = self.loader.step
        return super().__iter__()

    @property
    def held(self) -> int:
        """Batches that Lightning has taken and not trained on."""
        return int(self._began is not None and self.loader.step > self._began)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_at(self.loader.step - self.held)

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        self._began = None
        super().load_state_dict(state, strict=strict)
