"""Delivery to torchtitan: its data loader over packed documents, with one state for all data-parallel ranks."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from penstock.deliver.adapter import importing
from penstock.deliver.torch import deliver
from penstock.formats.open import open_source
from penstock.loader import Loader
from penstock.order import Shard
from penstock.stream import Stream

with importing("penstock.deliver.torchtitan needs torchtitan", "pip install torchtitan", "torchtitan", "tyro"):
    import tyro
    from torchtitan.components.dataloader import BaseDataLoader

__all__ = ["TitanDataLoader"]

FIELDS = ("tokens", "labels", "position")


class TitanDataLoader(BaseDataLoader):  # type: ignore[misc]
    """A data loader for ``Trainer.Config(dataloader=TitanDataLoader.Config(...))``. For one thread.

    ``dataset_path`` is anything that :func:`penstock.open` takes and that has documents of tokens; it is shuffled with ``seed`` and
    packed to the sequence length of the training. ``stream`` is a function of that length instead: it gives packs with the fields
    tokens, labels and position, or a mixture of them. ``infinite`` is False for one epoch, whose last batches are dropped where
    they are too few for all ranks: every rank has the same number of steps.

    A batch is ``({"input": i64[b, L], "positions": i64[b, L]}, labels i64[b, L])``, labels -100 where a document ends. The state is
    the same on all ranks and fits every data-parallel degree, local batch size and number of accumulated batches.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """What a configuration file or the command line says."""

        seed: int = 0
        """The order of the documents."""

        infinite: bool = True
        """Whether one epoch follows another without end."""

        stream: Annotated[Callable[[int], Stream] | None, tyro.conf.Suppress] = None
        """A function of the sequence length that gives packs, in the place of ``dataset_path``."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: Any = None,
        seq_len: int,
        local_batch_size: int,
        **rest: Any,
    ) -> None:
        stream = _stream(config, seq_len)
        shard = Shard(dp_rank, dp_world_size)
        tail = "wrap" if config.infinite else "drop"
        self._loader = Loader(stream, local_batch_size * dp_world_size, shard=shard, tail=tail)
        self._batches = deliver(self._loader, forever=config.infinite)

    @property
    def loader(self) -> Loader:
        """Whose batches these are."""
        return self._loader

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        for batch in self._batches:
            yield {"input": batch["tokens"].long(), "positions": batch["position"].long()}, batch["labels"].long()

    def state_dict(self) -> dict[str, Any]:
        return {"penstock": json.dumps(self._loader.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a run stood; nothing happens if the state is empty. See :meth:`penstock.Loader.load_state_dict`."""
        if not state_dict:
            return
        if "penstock" not in state_dict:
            raise ValueError(f"expected the state of a TitanDataLoader, got one with the keys {sorted(state_dict)[:5]}")
        self._loader.load_state_dict(json.loads(state_dict["penstock"]))

    def close(self) -> None:
        """Stop reading ahead. Idempotent."""
        self._batches.close()


def _stream(config: TitanDataLoader.Config, seq_len: int) -> Stream:
    if config.stream is None:
        if not config.dataset_path:
            raise ValueError("expected dataset_path, the documents to pack, or stream, a function of the sequence length")
        return open_source(config.dataset_path).shuffle(seed=config.seed).pack(seq_len, fields=FIELDS)
    stream = config.stream(seq_len)
    for name in FIELDS:
        if name not in stream.schema or stream.schema[name].shape != (seq_len,):
            raise ValueError(f"expected packs of {seq_len} tokens with the field {name!r}: use pack({seq_len}, fields={FIELDS})")
    return stream
