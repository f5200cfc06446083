"""Small programs around a loader, run by tests in processes of their own: python -m tests.loader.program <name> ..."""

import gc
import os
import resource
import sys
import threading
import time
from typing import Any

import numpy as np

import penstock as pen
from penstock.source.array import ArraySource


def say(text: object) -> None:
    """One line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


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


def resident() -> int:
    """Bytes of memory in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def memory(kind: str, prefetch: str, batch_mb: int, threads: int) -> None:
    """Say how much memory a slow consumer needs, above that of the data: every batch has ``batch_mb`` megabytes."""
    rows = 64
    made = threading.Event()

    def grow(batch: Any) -> Any:
        made.set()
        return {"big": np.ones((batch_mb << 20) // 8)}

    data = (
        np.zeros((rows, 16), np.float32)
        if kind != "native"
        else np.ones((rows, (batch_mb << 20) // 8), np.float64)[:1].repeat(1, 0)
    )
    if kind == "native":
        data = np.lib.stride_tricks.as_strided(data, (rows, data.shape[1]), (0, 8))
        source = _Repeated(rows, batch_mb)
        loader = pen.Loader(source.shuffle(seed=1), 1, threads=threads, prefetch=prefetch)
    else:
        source = ArraySource({"x": data}, threads=1)
        loader = pen.Loader(source.shuffle(seed=1), 1, threads=threads, prefetch=prefetch, transform=grow)
    before, most = resident(), 0
    for number, _ in enumerate(loader):
        for _ in range(4):
            time.sleep(0.01)
            most = max(most, resident() - before)
        if number == 15:
            break
    say(most)


class _Repeated(ArraySource):
    """One large record, many times."""

    def __init__(self, n: int, megabytes: int) -> None:
        self._row = np.ones((1, (megabytes << 20) // 8))
        super().__init__({"big": self._row}, threads=1)
        self._length = n

    def native_reader(self, field: str) -> None:
        """None: the loader calls ``read``."""
        return

    def _read(self, ids: Any, fields: Any, out: Any) -> Any:
        return super()._read(np.zeros(len(ids), np.int64), fields, out)


def names(kind: str) -> None:
    """Say what /dev/shm holds, then wait to be killed."""
    batches = make_loader(kind).forever()
    next(batches)
    say("ready")
    while True:
        next(batches)


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
