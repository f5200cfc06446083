"""The figures of a loader in real trackers, read back: W&B without a network, MLflow in files, TensorBoard. It checks itself.

Usage: python -m tests.trainers.tracker_check
"""

import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

import penstock as pen
from penstock.deliver.tracker import Metrics

NAMES = {f"loader/{name}" for name in ("batches_per_s", "samples_per_s", "bytes_per_s", "wait_share", "wait_ms", "epoch")}


def train(tracker: Any) -> None:
    loader = pen.Loader(pen.open({"x": np.arange(1000)}).shuffle(seed=7), 10)
    metrics = Metrics(loader)
    for _ in loader:
        if loader.step % 50 == 0:
            metrics.log(tracker)


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        mlflow.set_tracking_uri(f"file://{place}/mlflow")
        with mlflow.start_run() as run:
            train(mlflow)
        client = mlflow.MlflowClient()
        for name in NAMES:
            assert [point.step for point in client.get_metric_history(run.info.run_id, name)] == [50, 100], name
        with SummaryWriter(f"{place}/board") as writer:
            train(writer)
        events = EventAccumulator(f"{place}/board").Reload()
        assert set(events.Tags()["scalars"]) == NAMES
        assert [point.step for point in events.Scalars("loader/wait_ms")] == [50, 100]
        with wandb.init(mode="offline", dir=place, project="p", settings=wandb.Settings(console="off")) as tracked:
            train(tracked)
            summary = {name: tracked.summary[name] for name in NAMES}
        assert summary["loader/samples_per_s"] > 0
        assert list(Path(place).glob("wandb/offline-run-*/run-*.wandb"))
    told = ", ".join(f"{name} {version(name)}" for name in ("wandb", "mlflow-skinny", "tensorboard"))
    sys.stdout.write(f"{told}: figures of the loader written and read back\n")


if __name__ == "__main__":
    main()
