"""Delivery to the Trainer of transformers and to TRL: loaders where they take datasets, packed batches in the padding-free form."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar

from penstock.deliver.adapter import for_evaluation, importing, padding_free, with_bounds
from penstock.deliver.torch import DataLoader
from penstock.errors import StateMismatchError
from penstock.loader import Loader
from penstock.trace import LossLog

__all__ = ["log_losses", "over_loaders", "padding_free", "with_bounds"]

T = TypeVar("T")


def over_loaders(trainer: type[T]) -> type[T]:
    """A Trainer, or a class derived from it such as TRL's SFTTrainer, that takes loaders as train_dataset and eval_dataset.

    Batches go to the model as the loaders make them; no collator, no sampler. The loader's shard divides them among the ranks.
    A resumed run begins at its step without reading the batches before it, and StateMismatchError says if the data are others.
    Loaders for evaluation need ``restart=True``.
    """

    keeps_state = _keeps_state()

    class LoaderTrainer(trainer):  # type: ignore[valid-type, misc]
        def __init__(self, *args: Any, train_dataset: Loader | None = None, eval_dataset: Any = None, **options: Any) -> None:
            shown = _every(eval_dataset, _columns)
            super().__init__(*args, train_dataset=_every(train_dataset, _columns), eval_dataset=shown, **options)
            self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
            self.add_callback(keeps_state)

        def get_train_dataloader(self) -> DataLoader:
            loader = _checked(self.train_dataset)
            if loader.restart or getattr(loader.schedule, "tail", None) == "wrap":
                raise ValueError("the Trainer counts epochs of one length: leave out restart=True and tail='wrap'")
            return _CountedLoader(loader, num_workers=self.args.dataloader_num_workers)

        def training_step(self, *args: Any, **options: Any) -> Any:
            loader = getattr(self.callback_handler, "train_dataloader", None)
            if isinstance(loader, _CountedLoader):
                loader.train_next()
            return super().training_step(*args, **options)

        def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
            if isinstance(eval_dataset, str):
                eval_dataset = self.eval_dataset[eval_dataset]
            return DataLoader(for_evaluation(_checked(self.eval_dataset if eval_dataset is None else eval_dataset)))

        def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
            return self.get_eval_dataloader(test_dataset)

    LoaderTrainer.__name__ = LoaderTrainer.__qualname__ = f"Loader{trainer.__name__}"
    return LoaderTrainer


class _CountedLoader(DataLoader):
    """Batches whose steps are remembered until they are trained on: the Trainer takes those of a whole update before the first."""

    def __init__(self, loader: Loader, **options: Any) -> None:
        super().__init__(loader, **options)
        self.taken: deque[int] = deque()
        self.trained: int | None = None  # the step of the batch that is trained on

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self.taken.clear()
        self.trained = None
        for batch in super().__iter__():
            self.taken.append(self.loader.step - 1)
            yield batch

    def train_next(self) -> None:
        """The next batch that was taken is trained on, whether its losses are logged or not."""
        self.trained = self.taken.popleft() if self.taken else None


def log_losses(trainer: Any, log: LossLog) -> Callable[[Any], None]:
    """A function that logs the losses of the batch that a trainer of :func:`over_loaders` trains on; call it in ``compute_loss``
    or in a ``compute_loss_func`` with the loss of every sample, or of every document of packs. It changes nothing of the training,
    and does nothing in an evaluation.

    ``log`` is a :class:`penstock.LossLog` without a loader: it is that of the trainer. A callback closes it behind the training.
    """
    import torch
    from transformers import TrainerCallback

    batches: list[_CountedLoader] = []

    class LogsLosses(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **kept: Any) -> None:
            batches[:] = [kept["train_dataloader"]]
            log.follow(batches[0].loader)

        def on_train_end(self, args: Any, state: Any, control: Any, **kept: Any) -> None:
            log.close()

    def log_batch(losses: Any) -> None:
        if not torch.is_grad_enabled():
            return
        if not batches or batches[0].trained is None:
            log.miss("expected the losses of a batch of a trainer of over_loaders, in its training_step")
        else:
            log(losses, step=batches[0].trained)

    trainer.add_callback(LogsLosses())
    return log_batch


def _every(loaders: Any, function: Callable[[Loader], Any]) -> Any:
    if loaders is None or isinstance(loaders, Mapping):
        return None if loaders is None else {name: function(_checked(one)) for name, one in loaders.items()}
    return function(_checked(loaders))


def _columns(loader: Loader) -> Any:
    """What trainers look at before they train: TRL takes nothing but a data set, and a sample from it. The loader does not move."""
    from datasets import Dataset

    return Dataset.from_dict({name: [None] for name in loader.batch(0)})


def _checked(loader: Any) -> Loader:
    if not isinstance(loader, Loader):
        raise TypeError(f"expected a penstock Loader in the place of a dataset, got {type(loader).__name__}")
    return loader


@cache
def _keeps_state() -> type[Any]:
    """A callback that puts the loader's state into trainer_state.json, and compares it when a run resumes."""
    with importing("over_loaders needs transformers", "pip install 'transformers[torch]'", "transformers"):
        from transformers import TrainerCallback
        from transformers.trainer_callback import ExportableState

    class KeepsState(TrainerCallback, ExportableState):  # type: ignore[misc]
        loader: Loader | None = None

        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": {"saved": self.loader.state_dict() if self.loader is not None else None}}

        def on_train_begin(self, args: Any, state: Any, control: Any, **kept: Any) -> None:
            self.loader = loader = kept["train_dataloader"].loader
            saved = state.stateful_callbacks.get("KeepsState", {}).get("attributes", {}).get("saved")
            if not state.global_step or saved is None:
                return
            now = loader.state_dict()["batch_size"]
            if saved["batch_size"] != now:
                raise StateMismatchError(
                    f"the Trainer counts batches: the run had batch_size {saved['batch_size']}, the loader has {now}"
                )
            loader.load_state_dict(saved)  # the Trainer seeks by its own count, which is the same

    return KeepsState
