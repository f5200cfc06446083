"""The Trainer of torchtitan on a processor, with its checkpoints: killed and resumed. Usage: python -m tests.trainers.titan_run

torchtitan looks for an accelerator, and asks it for its name and memory: a processor has no answers, so they are given here.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch._utils

MEMORY = dict.fromkeys(("active_bytes.all.peak", "reserved_bytes.all.peak", "num_alloc_retries", "num_ooms"), 0)


def _processor() -> ModuleType:
    module = ModuleType("processor")
    module.__dict__.update({name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("__")})
    module.get_device_name = lambda device=None: "processor"  # type: ignore[attr-defined]
    module.current_device = lambda: 0  # type: ignore[attr-defined]
    module.get_device_properties = lambda device=None: SimpleNamespace(total_memory=1 << 30)  # type: ignore[attr-defined]
    module.reset_peak_memory_stats = module.empty_cache = lambda *rest: None  # type: ignore[attr-defined]
    module.memory_stats = lambda device=None: MEMORY  # type: ignore[attr-defined]
    module.get_rng_state = lambda device=None: torch.get_rng_state()  # type: ignore[attr-defined]
    module.set_rng_state = lambda state, device=None: torch.set_rng_state(state)  # type: ignore[attr-defined]
    return module


_known = torch._utils._get_device_module
torch._utils._get_available_device_type = lambda: "cpu"
torch._utils._get_device_module = lambda name: _processor() if name == "cpu" else _known(name)

from tests.trainers import run  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torchtitan.components.checkpoint import CheckpointManager  # noqa: E402
from torchtitan.components.loss import CrossEntropyLoss  # noqa: E402
from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.components.optimizer import default_adamw  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.distributed import utils as dist_utils  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.llama3 import model_registry  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

from penstock.deliver.torchtitan import FIELDS, TitanDataLoader  # noqa: E402


class NoTokenizer(BaseTokenizer):
    """The data are tokens already."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: BaseTokenizer.Config, **rest: Any) -> None:
        super().__init__()
        self.eos_id = 0

    def encode(self, *rest: Any, **more: Any) -> list[int]:
        raise NotImplementedError

    def decode(self, *rest: Any, **more: Any) -> str:
        raise NotImplementedError

    def get_vocab_size(self) -> int:
        return run.VOCABULARY


def train(place: Path, log: run.Log) -> None:
    spec = model_registry("debugmodel")
    layer = spec.model.layers[0]  # its attention needs an accelerator: another one of torchtitan's, which looks at positions only
    layer = replace(layer, attention=replace(layer.attention, inner_attention=ScaledDotProductAttention.Config()))
    spec = replace(spec, model=replace(spec.model, layers=[layer]))
    ranks = int(os.environ["RANKS"])

    def packs(length: int) -> Any:
        return run.make_loader().stream.source.shuffle(seed=7).pack(length, fields=FIELDS)

    config = Trainer.Config(
        loss=CrossEntropyLoss.Config(global_vocab_size=2048),
        model_spec=spec,
        tokenizer=NoTokenizer.Config(),
        optimizer=default_adamw(lr=8e-4),
        training=TrainingConfig(
            local_batch_size=run.ROWS // 2,  # on one rank, two batches are accumulated
            global_batch_size=run.ROWS,
            seq_len=run.LENGTH,
            steps=run.STEPS,
            disable_cuda_graphs=True,
            dtype="float32",
            mixed_precision_param="float32",
        ),
        dataloader=TitanDataLoader.Config(stream=packs),
        metrics=MetricsProcessor.Config(log_freq=1),
        parallelism=ParallelismConfig(data_parallel_shard_degree=ranks, spmd_backend="partial_dtensor"),
        checkpoint=CheckpointManager.Config(enable=True, interval=run.SAVED, last_save_model_only=False),
        dump_folder=str(place),
        debug=DebugConfig(seed=3),
    )
    trainer = Trainer(config)
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
    told = trainer.metrics_processor.log

    def tell(step: int, global_avg_loss: float, *rest: Any, **more: Any) -> None:
        told(step, global_avg_loss, *rest, **more)
        log(step, global_avg_loss)

    trainer.metrics_processor.log = tell
    dist_utils.set_pg_timeouts = lambda **rest: None  # it calls a function that torch 2.13 does not have
    trainer.train()
    trainer.close()


if __name__ == "__main__":
    run.main(__file__, train, ["torchtitan", "torch"], tolerance=1e-5, always=True, same_start=False)
