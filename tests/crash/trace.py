"""Traces: the system calls of a process and its children, recorded by strace, as a list of calls in the order of their start."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

MODELLED = (
    "openat", "pwrite64", "write", "fsync", "fdatasync", "link", "linkat", "rename", "renameat", "renameat2",
    "unlink", "unlinkat", "ftruncate", "mkdir", "mkdirat",
)  # fmt: skip
# Calls that change files in ways the simulator does not know: one on the store is an error, so that nothing is overlooked.
FOREIGN = (
    "open", "creat", "pwritev", "pwritev2", "writev", "truncate", "fallocate", "copy_file_range", "sendfile", "splice", "mmap",
    "rmdir", "symlink", "symlinkat", "mknod", "mknodat", "sync_file_range", "sync", "syncfs", "io_uring_setup", "io_submit",
)  # fmt: skip

_LINE = re.compile(r"(\d+) +(?:<\.\.\. (\w+) resumed>(.*)|(\w+)\((.*))$", re.DOTALL)
_UNFINISHED = " <unfinished ...>"
_RESULT = re.compile(r"\) += (-?\d+|\?|0x[0-9a-f]+)(?:<[^>]*>)?(?:\(deleted\))?( E[A-Z0-9]+.*)?$", re.DOTALL)
_ARGUMENT = re.compile(
    r'\s*(?:"(?P<text>[^"]*)"(?P<cut>\.\.\.)?|(?P<fd>[\w-]+)<(?P<path>[^>]*)>(?:\(deleted\))?|(?P<plain>[^,"<>{}\[\]]+))'
)


@dataclass
class Call:
    """One system call. ``start`` and ``end`` are places in the trace; ``end`` is None for a call that never returned."""

    process: int
    name: str
    start: int
    arguments: list[bytes | str] = field(default_factory=list)  # bytes for texts, str for everything else
    paths: dict[int, str] = field(default_factory=dict)  # of the arguments that are descriptors
    result: int = -1
    end: int | None = None

    def target(self, place: int) -> str:
        """The path a text argument names, seen from the directory descriptor before it if there is one."""
        text = self.arguments[place]
        assert isinstance(text, bytes), self
        return os.path.normpath(os.path.join(self.paths.get(place - 1, ""), text.decode()))


def record(command: Sequence[str], output: Path, directory: Path) -> None:
    """Run a Python module under strace; CalledProcessError if it fails."""
    calls = ",".join(f"?{name}" for name in (*MODELLED, *FOREIGN))
    strace = ["strace", "-f", "-y", "-xx", "-s", "1048576", "--seccomp-bpf", "-o", str(output), "-e", f"trace={calls}"]
    subprocess.run(
        [*strace, sys.executable, "-B", "-m", *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(directory)},
        check=True,
        stdout=subprocess.DEVNULL,
    )


def parse(text: str) -> list[Call]:
    """The calls of a trace made by :func:`record`, in the order of their start."""
    calls: list[Call] = []
    open_calls: dict[int, tuple[Call, str]] = {}
    for number, line in enumerate(text.split("\n")):
        match = _LINE.match(line)
        if match is None:  # an exit, a signal, the end
            continue
        process, resumed, rest, name, arguments = int(match[1]), match[2], match[3], match[4], match[5]
        if resumed:
            call, begun = open_calls.pop(process)
            _finish(call, begun + rest, number)
            continue
        call = Call(process, name, number)
        calls.append(call)
        if arguments.endswith(_UNFINISHED):
            open_calls[process] = (call, arguments.removesuffix(_UNFINISHED))
        else:
            _finish(call, arguments, number)
    for call, begun in open_calls.values():  # killed inside
        call.arguments, call.paths = _arguments(begun)
    return calls


def _finish(call: Call, text: str, number: int) -> None:
    match = _RESULT.search(text)
    if match is None:
        raise ValueError(f"line {number + 1} of the trace cannot be read: {text[:200]}")
    call.arguments, call.paths = _arguments(text[: match.start()])
    call.result = -1 if match[1] == "?" else int(match[1], 0)
    call.end = None if match[1] == "?" else number


def _arguments(text: str) -> tuple[list[bytes | str], dict[int, str]]:
    arguments: list[bytes | str] = []
    paths: dict[int, str] = {}
    for match in _ARGUMENT.finditer(text):
        if match["text"] is not None:
            if match["cut"]:
                raise ValueError("a text of the trace was cut short")
            arguments.append(_bytes(match["text"]))
        elif match["fd"] is not None:
            paths[len(arguments)] = _bytes(match["path"]).decode(errors="replace")
            arguments.append(match["fd"])
        elif match["plain"].strip():
            arguments.append(match["plain"].strip())
    return arguments, paths


def _bytes(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", "")) if escaped.startswith("\\x") else escaped.encode()


def marks(call: Call) -> Iterator[tuple[str, int]]:
    """The words START and ACK, with their number, that a call of write prints."""
    if call.name == "write" and call.arguments and call.arguments[0] == "1":
        for line in bytes(call.arguments[1] if isinstance(call.arguments[1], bytes) else b"").decode().splitlines():
            word, _, number = line.partition(" ")
            if word in ("START", "ACK"):
                yield word, int(number)
