"""Delivery to Lightning: a data module whose loaders are made where the ranks are known, and saved in Lightning's checkpoints."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.deliver.requirement import for_evaluation, for_training, importing
from penstock.deliver.torch import DataLoader, Delivery, deliver
from penstock.loader import Loader
from penstock.order import Shard

with importing("penstock.deliver.lightning needs lightning", "pip install lightning", "lightning"):
    from lightning.pytorch import LightningDataModule

__all__ = ["Data"]

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
        raise ValueError(f"expected a loader with the shard it was asked for, {shard}, got {loader.shard}: pass shard=shard")
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

    def state_dict(self) -> dict[str, Any]:
        held = self._began is not None and self.loader.step > self._began
        return self.loader.state_at(self.loader.step - held)

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        self._began = None
        super().load_state_dict(state, strict=strict)
