"""Megatron-core on a processor: its GPTModel and its data-parallel groups. Usage: python -m tests.trainers.megatron_run"""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.transformer.transformer_config import TransformerConfig
from tests.trainers import run

import penstock as pen
from penstock.deliver.megatron import MegatronSamples, MicroBatches

MICRO = 2
torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]  # it has tensors there


def make_model() -> GPTModel:
    torch.manual_seed(3)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=16,
        num_attention_heads=2,
        use_cpu_initialization=True,
        params_dtype=torch.float64,
        pipeline_dtype=torch.float64,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        attention_softmax_in_fp32=False,
    )
    return GPTModel(config, get_gpt_layer_local_spec(), run.VOCABULARY, run.LENGTH, parallel_output=False).double()


def train(place: Path, log: run.Log) -> None:
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    shard = pen.Shard(parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size())
    get_cuda_rng_tracker().fork = lambda *name: nullcontext()  # dropout is 0
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = consumed = 0
    if (place / "last.pt").exists():
        saved = torch.load(place / "last.pt", weights_only=True)
        model.load_state_dict(saved["model"], strict=False)
        optimizer.load_state_dict(saved["optimizer"])
        step, consumed = saved["step"], saved["consumed_samples"]
    stream = run.make_loader().stream
    samples = MegatronSamples(stream, num_samples=10**9, attention_mask=True)
    dealt = MicroBatches(len(samples), consumed_samples=consumed, micro_batch_size=MICRO, shard=shard)
    batches = iter(torch.utils.data.DataLoader(samples, batch_sampler=dealt))
    while step < run.STEPS:
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for _ in range(run.ROWS // (MICRO * shard.world)):
            batch: dict[str, Any] = next(batches)
            losses = model(batch["tokens"], batch["position_ids"], batch["attention_mask"], labels=batch["labels"])
            loss = (losses * batch["loss_mask"].double()).sum() / (run.ROWS // shard.world * run.LENGTH)
            loss.backward()
            total += loss.detach()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=parallel_state.get_data_parallel_group())
                parameter.grad /= shard.world
        optimizer.step()
        step, consumed = step + 1, consumed + run.ROWS
        if step % run.SAVED == 0 and dist.get_rank() == 0:
            place.mkdir(exist_ok=True)
            state = {key: value for key, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
            torch.save(
                {"model": state, "optimizer": optimizer.state_dict(), "step": step, "consumed_samples": consumed},
                place / "next.pt",
            )
            os.replace(place / "next.pt", place / "last.pt")
        dist.barrier()
        log(step, run.over_ranks(total))


if __name__ == "__main__":
    run.main(__file__, train, ["megatron-core", "torch"], always=True)
