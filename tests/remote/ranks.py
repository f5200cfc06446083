"""Ranks of one job as processes, each of which reads its part of a block-shuffled epoch; a program and what starts it.

The program forks a process for each rank, which opens the source and waits. Lines on its standard input are commands: "read 0 1"
lets ranks 0 and 1 read, "kill 0" ends rank 0 at once (SIGKILL). Lines on its standard output say what a rank has done: "0 opened",
"0 read 500 of 500", "0 failed ..." or "0 killed". A rank that has read its part stays until the input ends: its peers may need it.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from tests.cli import warm

import penstock as pen

ROOT = Path(__file__).parents[2]
DEADLINE_S = 100
WIDTH = 256
SECRET = "known to all ranks of a job"


def records(ids: Any) -> Any:
    """The records with those ids: 1 KiB each."""
    return (np.asarray(ids, np.int64)[:, None] * 7919 + np.arange(WIDTH)).astype(np.int32)


def work(rank: int, plan: dict[str, Any], go: int) -> None:
    """What a rank does."""
    signal.alarm(DEADLINE_S)
    options = dict(plan["options"])
    with contextlib.ExitStack() as stack:
        if plan["peers"]:
            options["cache"] += f"/{rank}"
            options["peers"] = stack.enter_context(pen.Peers(plan["peers"], rank, secret=SECRET, wait_s=plan["wait_s"]))
        data = stack.enter_context(pen.open(plan["url"], **options))
        say(f"{rank} opened")
        os.read(go, 1)
        stream = data.shuffle(seed=1, block=plan["block"], window=3)
        right = total = 0
        for batch in pen.Loader(stream, 8 * plan["world"], shard=pen.Shard(rank, plan["world"]), ids="id", threads=1):
            total += len(batch["id"])
            right += int(np.all(batch["data"] == records(batch["id"]), axis=1).sum())
        say(f"{rank} read {right} of {total}")
        os.read(go, 1)


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main() -> None:
    plan = json.loads(sys.argv[1])
    pids, gates = [], []
    for rank in range(plan["world"]):
        go, gate = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work(rank, plan, go)
                code = 0
            except BaseException as error:
                say(f"{rank} failed {type(error).__name__}: {error}".replace("\n", " "))
            finally:
                os._exit(code)
        os.close(go)
        pids.append(pid)
        gates.append(gate)
    for line in sys.stdin:
        command, *ranks = line.split()
        for rank in map(int, ranks):
            if command == "read":
                os.write(gates[rank], b".")
            else:
                os.kill(pids[rank], signal.SIGKILL)
                os.waitpid(pids[rank], 0)
                say(f"{rank} killed")
    for gate in gates:
        os.write(gate, b".")


class Ranks:
    """The program, while it runs."""

    def __init__(self, write: Callable[[str], object], lines: IO[str], peers: list[str]) -> None:
        self._write, self._lines, self.peers = write, lines, peers

    def tell(self, command: str, *ranks: int) -> None:
        self._write(f"{command} {' '.join(map(str, ranks))}\n")

    def heard(self, count: int) -> list[str]:
        """The next lines, sorted."""
        return sorted(self._lines.readline().strip() for _ in range(count))


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nothing listens on."""
    with contextlib.ExitStack() as stack:
        return [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


@contextlib.contextmanager
def ranks(
    url: str | list[str], world: int, *, are_peers: bool = False, wait_s: float = 60, block: int = 100, **options: Any
) -> Iterator[Ranks]:
    """Ranks that have opened a source at a URL. Peers have a cache each, under the directory that is given."""
    peers = [f"127.0.0.1:{port}" for port in free_ports(world)] if are_peers else []
    plan = {"url": url, "world": world, "block": block, "options": options, "peers": peers, "wait_s": wait_s}
    command = [sys.executable, "-m", "tests.remote.ranks", json.dumps(plan)]
    with warm.popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        late = threading.Timer(DEADLINE_S, program.kill)
        late.start()
        try:
            group = Ranks(program.stdin.write, program.stdout, peers)
            assert group.heard(world) == [f"{rank} opened" for rank in range(world)]
            yield group
        finally:
            late.cancel()
            program.stdin.close()
            program.stdout.close()


if __name__ == "__main__":
    main()
