"""Small programs around a loader, run by tests in processes of their own: python -m tests.loader.program <name> ..."""

import gc
import json
import os
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

import penstock as pen
from penstock.formats.array import ArraySource


def say(text: object) -> None:
    """One line, at once; a handler of a signal that comes meanwhile may do so too, which a buffer refuses."""
    os.write(1, f"{text}\n".encode())


def make_loader(kind: str, n: int = 10_000, width: int = 16, **options: Any) -> pen.Loader:
    """A loader of a kind: native threads, threads with a transform, or the caller's own thread."""
    source = ArraySource({"x": np.arange(n * width, dtype=np.float32).reshape(n, width)}, threads=1)
    kinds: dict[str, dict[str, Any]] = {
        "native": {"threads": 2},
        "threads": {"threads": 2, "transform": lambda batch: batch},
        "slow": {"threads": 2, "transform": slowly},
        "plain": {"threads": 0},
    }
    return pen.Loader(source.shuffle(seed=7), **({"batch_size": 32} | kinds[kind] | options))


def slowly(batch: Any) -> Any:
    """A transform that takes a moment."""
    time.sleep(0.02)
    return batch


def loop(kind: str) -> None:
    """Batches for ever, until somebody ends it. A second interrupt may come at any time."""
    loader = make_loader(kind)
    say("ready")
    for _ in loader.forever():
        pass


def save_on_signal(kind: str) -> None:
    """Batches until a signal comes; its handler writes the state, closes the loader and ends the program."""
    loader = make_loader(kind)
    batches = loader.forever()

    def end(number: int, frame: object) -> None:
        state = loader.state_dict()
        batches.close()
        say(json.dumps(state))
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    say("ready")
    for _ in batches:
        pass


def leave_in_a_thread(kind: str) -> None:
    """End while a thread of the program waits for batches."""
    batches = make_loader(kind).forever()
    begun = threading.Event()

    def consume() -> None:
        for _ in batches:
            begun.set()

    threading.Thread(target=consume, daemon=True).start()
    begun.wait()
    say("done")


def leave(kind: str) -> None:
    """End while a loader is in the middle of things."""
    loader = make_loader(kind)
    batches = loader.forever()
    for _ in range(3):
        next(batches)
    globals()["kept"] = (loader, batches)
    say("done")


def fail(kind: str) -> None:
    """End by an error of the program's own, with the iterator in a traceback."""
    for _ in make_loader(kind):
        raise ValueError("the trainer's own")


def half_made(kind: str) -> None:
    """Loaders and iterators that were never finished are thrown away in silence."""
    for options in ({"batch_size": 0}, {"tail": "no"}, {"threads": -1}, {"prefetch": "x"}):
        try:
            make_loader(kind, **options)
        except ValueError:
            gc.collect()
    broken = pen.Loader.__new__(pen.Loader)
    del broken
    iterator = type(iter(make_loader(kind))).__new__(type(iter(make_loader(kind))))
    del iterator
    gc.collect()
    say("done")


def anonymous_bytes() -> int:
    """Memory in use that is not that of files."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))


def memory(kind: str, path: str, prefetch: str, batch_mib: int, threads: int) -> None:
    """Say how much memory a slow consumer needs: every batch has ``batch_mib`` MiB, as a record or made by a transform."""

    def grow(batch: Any) -> Any:
        return {"big": np.ones((batch_mib << 20) // 8)}

    if kind == "native":
        np.lib.format.open_memmap(path, "w+", np.float64, (12, (batch_mib << 20) // 8))  # a file with holes
        source, transform = pen.open(path), None
    else:
        source, transform = ArraySource({"x": np.zeros(12)}, threads=1), grow
    loader = pen.Loader(source.shuffle(seed=1), 1, threads=threads, prefetch=prefetch, transform=transform)
    before, most = anonymous_bytes(), 0
    for _ in loader:
        for _look in range(3):
            time.sleep(0.005)
            most = max(most, anonymous_bytes() - before)
    say(most)


def names(kind: str) -> None:
    """Take batches until killed."""
    batches = make_loader(kind).forever()
    next(batches)
    say("ready")
    while True:
        next(batches)


def rank(path: str, number: int, world: int, *generation: int) -> None:
    """Open a store, say which generation that is, then deliver when told to, then take the states that come: a line each."""
    data = pen.open(path, **({"generation": generation[0]} if generation else {}))
    loader = pen.Loader(data.shuffle(seed=7), 9, shard=pen.Shard(number, world), threads=2)
    say(data.generation)
    sys.stdin.readline()
    batches = [batch["x"].tolist() for batch in loader]
    say(json.dumps([batches, loader.state_dict()]))
    for line in sys.stdin:
        try:
            loader.load_state_dict(json.loads(line))
            say("taken")
        except pen.errors.StateMismatchError:
            say("StateMismatchError")


def modules(kind: str) -> None:
    """Say which frameworks are loaded after an epoch."""
    for _ in make_loader(kind, 100):
        pass
    loaded = [
        name for name in ("torch", "jax", "jaxlib", "tensorflow", "h5py", "pyarrow", "ray", "rich", "scipy") if name in sys.modules
    ]
    os.write(2, repr(loaded).encode())


if __name__ == "__main__":
    arguments = [int(text) if text.isdigit() else text for text in sys.argv[2:]]
    globals()[sys.argv[1]](*arguments)
