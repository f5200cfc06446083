"""The Trainer of transformers, and SFTTrainer of TRL, on packed batches in the padding-free form: killed and resumed.

Usage: python -m tests.trainers.hf_run [trl]
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from tests.trainers import run
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import penstock as pen
from penstock.deliver.huggingface import over_loaders, padding_free, with_bounds

OPTIONS: dict[str, Any] = {
    "use_cpu": True,
    "max_steps": run.STEPS,
    "save_steps": run.SAVED,
    "learning_rate": 0.01,
    "lr_scheduler_type": "constant",
    "report_to": [],
    "disable_tqdm": True,
    "logging_strategy": "no",
    "eval_strategy": "steps",
    "eval_steps": 6,
    "ddp_find_unused_parameters": False,
}


class Losses(TrainerCallback):
    """The loss of every step. The Trainer saves after on_step_end, so a step is told when the next one begins."""

    def __init__(self, log: run.Log) -> None:
        self.log, self.losses = log, dict[int, float]()

    def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.global_step in self.losses:
            self.log(state.global_step, self.losses[state.global_step])

    on_train_end = on_step_begin


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=run.VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=256,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).double()


def train(place: Path, log: run.Log) -> None:
    is_trl = "trl" in os.environ.get("TRAINER", "")
    if is_trl:
        from trl import SFTConfig, SFTTrainer

        base, options = SFTTrainer, {"max_length": None, "dataset_kwargs": {"skip_prepare_dataset": True}, "packing": False}
        arguments = SFTConfig(str(place), bf16=False, gradient_checkpointing=False, **OPTIONS, **options)
    else:
        base, arguments = transformers.Trainer, TrainingArguments(str(place), **OPTIONS)
    losses = Losses(log)

    class Told(over_loaders(base)):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
            assert inputs["input_ids"].shape == (1, run.ROWS // run.num_ranks() * run.LENGTH)
            assert "attention_mask" not in inputs
            loss = super().training_step(model, inputs, num_items_in_batch)
            losses.losses[self.state.global_step + 1] = run.over_ranks(loss)
            return loss

    def make_loader(**rest: Any) -> pen.Loader:
        return run.make_loader(pen.Shard.from_environment(), tail="drop", transform=padding_free if is_trl else with_bounds, **rest)

    extra = {"processing_class": tokenizer()} if is_trl else {}
    trainer = Told(
        make_model(),
        arguments,
        train_dataset=make_loader(),
        eval_dataset=make_loader(restart=True),
        callbacks=[losses],
        **extra,
    )
    last = get_last_checkpoint(str(place)) if place.exists() else None
    trainer.train(resume_from_checkpoint=last)
    before = trainer.evaluate()["eval_loss"]
    assert trainer.evaluate()["eval_loss"] == before


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(run.VOCABULARY)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, "w0")), pad_token="w0", eos_token="w2")


if __name__ == "__main__":
    # The loss of these models is computed in float32, whatever their weights are: 24 bits, and sums in another order
    if sys.argv[1:] == ["trl"]:
        os.environ["TRAINER"] = sys.argv.pop()
        run.main(__file__, train, ["trl", "transformers", "accelerate"], tolerance=1e-5)
    else:
        run.main(__file__, train, ["transformers", "accelerate"], tolerance=1e-5)
