"""Data for the tests of commands, and three ways to run one: in this process, in a process of its own, in a terminal."""

import io
import json
import os
import pty
import select
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.cli import warm
from tests.effort import is_campaign
from typer.testing import CliRunner, Result

import penstock as pen
from penstock.cli import demo
from penstock.cli.main import app
from penstock.report import trainer

PATIENCE_S = 300
RECORDS = 40

FIELDS = {
    "image": pen.Field("u1", (16, 12, 3)),
    "label": pen.Field("i4"),
    "weight": pen.Field("f4", (3,)),
    "caption": pen.Field.text(codec=pen.Zstd(3)),
    "png": pen.Field.bytes(),
    "blob": pen.Field.bytes(),
    "tokens": pen.Field.ragged("u2"),
}


def pictures(count: int) -> np.ndarray:
    y, x, n = np.mgrid[:16, :12, :count].transpose(0, 3, 1, 2)
    return np.stack([16 * y, 20 * x, 6 * n], axis=-1).astype(np.uint8)


def encode(picture: np.ndarray, kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture).save(out, kind)
    return out.getvalue()


def columns(count: int) -> dict[str, Any]:
    images = pictures(count)
    return {
        "image": images,
        "label": np.arange(count),
        "weight": np.arange(3 * count).reshape(count, 3) / 4,
        "caption": [None if i == 3 else f"caption {i}" for i in range(count)],
        "png": [encode(image, "JPEG" if i % 2 else "PNG") for i, image in enumerate(images)],
        "blob": [bytes(range(i)) for i in range(count)],
        "tokens": [np.arange(i) for i in range(count)],
    }


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of two generations."""
    with pen.create(tmp_path / "train.pen", FIELDS) as out:
        out.extend(columns(RECORDS))
    with pen.open(tmp_path / "train.pen", mode="a") as out:
        out.update([7], {"caption": ["a better one"]})
    return tmp_path / "train.pen"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """An array of pictures in a file."""
    np.save(tmp_path / "images.npy", pictures(RECORDS))
    return tmp_path / "images.npy"


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """An array of numbers in a file."""
    np.save(tmp_path / "labels.npy", np.arange(RECORDS))
    return tmp_path / "labels.npy"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """Token blocks."""
    pen.convert({"tokens": np.arange(400, dtype=np.uint16).reshape(4, 100)}, tmp_path / "tokens.rox")
    return tmp_path / "tokens.rox"


def damage(path: Path) -> None:
    """Change bytes in the middle of a file."""
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 8] = bytes(byte ^ 0xFF for byte in data[middle : middle + 8])
    path.write_bytes(data)


@pytest.fixture
def damaged(store: Path) -> Path:
    """A store with a broken chunk: the first one of it, with all records."""
    damage(max((store / "chunk").iterdir(), key=lambda path: path.stat().st_size))
    return store


Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """A command in this process, without a terminal; 80 columns unless told otherwise."""

    def run(*words: object, columns: int = 80, env: Mapping[str, str] | None = None) -> Result:
        settings = {"COLUMNS": str(columns), "TERM": "dumb", **(env or {})}
        return CliRunner().invoke(app, [str(word) for word in words], env=settings, prog_name="penstock")

    return run


@pytest.fixture
def run_json(run: Run) -> Callable[..., Any]:
    """What a command prints as JSON; it must end well."""

    def run_json(name: str, *words: object, code: int = 0) -> Any:
        result = run(name, "--json", *words)
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    return run_json


def command(*words: object) -> list[str]:
    """A command line for an interpreter of its own."""
    return [sys.executable, "-m", "penstock", *map(str, words)]


@pytest.fixture(scope="session", autouse=True)
def warm_is_running() -> None:
    """The server lasts as long as this process: it is started before the first test."""
    warm.address()


def start(*words: object, **options: Any) -> "subprocess.Popen[Any]":
    """A command in a process of its own, which starts quickly (in a campaign: in an interpreter of its own)."""
    return subprocess.Popen(command(*words), **options) if is_campaign() else warm.Warm([*map(str, words)], **options)


@pytest.fixture
def warm_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command in this process starts, starts quickly too (in a campaign: interpreters)."""
    for module in (trainer, demo):
        monkeypatch.setattr(module, "subprocess", SimpleNamespace(PIPE=subprocess.PIPE, Popen=warm.popen))


def finish(*words: object, **options: Any) -> "subprocess.CompletedProcess[Any]":
    """The same, until it has ended."""
    with start(*words, **options) as process:
        try:
            output, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@dataclass(frozen=True)
class Seen:
    """What a terminal got to see, and the exit code."""

    exit_code: int
    output: str


@pytest.fixture
def in_terminal() -> Callable[..., Seen]:
    """A command in a terminal of so many columns, with all colors."""

    def in_terminal(*words: object, columns: int = 80, env: Mapping[str, str] | None = None) -> Seen:
        ours, theirs = pty.openpty()
        ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        settings = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
        settings |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", **(env or {})}
        try:
            with start(*words, stdin=theirs, stdout=theirs, stderr=theirs, env=settings) as process:
                os.close(theirs)
                return Seen(*watch(process, ours))
        finally:
            os.close(ours)

    return in_terminal


def watch(process: "subprocess.Popen[bytes]", terminal: int) -> tuple[int, str]:
    """Everything until the other side is closed."""
    until, seen = time.monotonic() + PATIENCE_S, b""
    while select.select([terminal], [], [], max(0, until - time.monotonic()))[0]:
        try:
            seen += os.read(terminal, 1 << 16)
        except OSError:  # nobody is there any more
            return process.wait(PATIENCE_S), seen.decode()
    process.kill()
    raise AssertionError(f"{process.args!r} did not end; it has shown {seen!r}")
