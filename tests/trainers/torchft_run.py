"""Two replicas under torchft's Manager: one is killed within step 7, the other goes on alone, the first comes back and is healed.

The committed losses of all steps are those of one replica that nobody disturbed. Usage: python -m tests.trainers.torchft_run
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.trainers import run
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer

from penstock.deliver.torchft import ReplicaBatches

ALONE = 12  # the replica that is left waits here, before the next quorum, until the other is back
WAIT = timedelta(seconds=120)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + WAIT.total_seconds()
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not come"
        time.sleep(0.05)  # what is waited for is another program


def train(place: Path, name: str, replica: int, *, killed: bool) -> None:
    """One replica. A line of its log: step, loss over all replicas, how many they were, the step it was healed to or -1."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model = run.Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    healed = -1

    def load(state: dict[str, Any]) -> None:
        nonlocal healed
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        batches.load_state_dict(state["data"])
        healed = manager.current_step()

    def save() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": batches.state_dict()}

    manager = Manager(
        pg=ProcessGroupGloo(timeout=WAIT),
        load_state_dict=load,
        state_dict=save,
        min_replica_size=1,
        use_async_quorum=False,  # a replica that comes back trains with the others at once
        timeout=WAIT,
        quorum_timeout=WAIT,
        connect_timeout=WAIT,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=f"replica{replica}",
        hostname="127.0.0.1",
        init_sync=False,
    )
    # Its heartbeat goes to the lighthouse now: the next quorum of the other waits for this one
    was_killed = (place / f"{name}.1.killed").exists()
    (place / f"{name}.{replica}.{'back' if was_killed else 'joined'}").touch()
    if name != "whole" and not was_killed:
        wait_for(place / f"{name}.{1 - replica}.joined")
    batches = ReplicaBatches(lambda shard: run.make_loader(shard), manager, most=2)
    while manager.current_step() < run.STEPS:
        if replica == 0 and name != "whole" and manager.current_step() == ALONE:
            wait_for(place / f"{name}.1.back")
        manager.start_quorum()
        step, replicas = manager.current_step(), manager.num_participants()
        batch = next(batches)
        assert len(batch["tokens"]) * replicas == run.ROWS
        optimizer.zero_grad()
        logits = model(batch["tokens"], batch["position"])
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["labels"].long().flatten(), ignore_index=-100, reduction="sum"
        ) / (len(batch["tokens"]) * run.LENGTH)
        loss.backward()
        if killed and step + 1 == run.KILLED:
            (place / f"{name}.1.killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        told = loss.detach().clone()
        for tensor in (told, *(parameter.grad for parameter in model.parameters())):
            manager.allreduce(tensor).wait()
        if manager.should_commit():
            optimizer.step()
            with (place / f"{name}.{replica}.log").open("a") as file:
                file.write(json.dumps([step + 1, float(told), replicas, healed]) + "\n")
    batches.close()
    manager.shutdown(wait=False)


def start(place: Path, name: str, replica: int, lighthouse: str, *, killed: bool = False) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "USE_LIBUV": "0",
        "TORCHFT_LIGHTHOUSE": lighthouse,
    }
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    log = (place / f"{name}.{replica}.text").open("a")
    arguments = [str(place), name, str(replica), str(int(killed))]
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__, *arguments], env=environment, stdout=log, stderr=log, text=True
    )


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """The lighthouse, which is native, tells every quorum."""
    kept = os.dup(2)
    with path.open("w") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, stderr_to(Path(directory) / "lighthouse.text"):
        place = Path(directory)

        def texts() -> str:
            return "\n".join(f"--- {path.name}\n{path.read_text()[-6000:]}" for path in place.glob("*.text"))

        def lines(name: str) -> list[Any]:
            return [json.loads(line) for line in (place / name).read_text().splitlines()]

        server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=60_000)
        assert start(place, "whole", 0, server.address()).wait(run.WAIT_S) == 0, texts()
        server.shutdown()
        server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=60_000)
        first, second = start(place, "run", 0, server.address()), start(place, "run", 1, server.address(), killed=True)
        assert second.wait(run.WAIT_S) == -signal.SIGKILL, texts()
        again = start(place, "run", 1, server.address())
        assert first.wait(run.WAIT_S) == 0, texts()
        assert again.wait(run.WAIT_S) == 0, texts()
        server.shutdown()
        whole, left, other = lines("whole.0.log"), lines("run.0.log"), lines("run.1.log")
    assert [line[0] for line in whole] == [line[0] for line in left] == list(range(1, run.STEPS + 1))
    alone = [line[0] for line in left if line[2] == 1]
    assert alone == list(range(run.KILLED, alone[-1] + 1)), alone
    back = [line for line in other if line[3] >= 0]
    assert [line[0] for line in other[: run.KILLED - 1]] == list(range(1, run.KILLED)), other
    assert [line[0] for line in back] == list(range(alone[-1] + 1, run.STEPS + 1)), other
    assert back[0][3] == alone[-1], "healed to the step of the other, which is counted from 0"
    worst = max(abs(line[1] / whole[line[0] - 1][1] - 1) for line in left + other)
    assert worst <= run.TOLERANCE, (worst, whole, left, other)
    told = ", ".join(f"{name} {version(name)}" for name in ("torchft", "torch"))
    sys.stdout.write(
        f"{told}: replica killed within step {run.KILLED}, steps {alone[0]} to {alone[-1]} by one replica, healed to step "
        f"{back[0][0]}: losses equal, {worst:.1e} apart\n"
    )


if __name__ == "__main__":
    if sys.argv[1:]:
        train(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), killed=sys.argv[4] == "1")
    else:
        main()
