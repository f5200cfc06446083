"""Traces: the system calls of a process and its children, recorded by strace, as a list of calls in the order of their start.

strace attaches to a forked child that waits for it: no interpreter has to start, and only calls of the work itself are seen.
"""

import ctypes
import os
import re
import signal
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PR_SET_PTRACER = 0x59616D61
_HANG_S = 300
"""A child that takes longer is killed by a signal, which its exit code tells."""

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


def run_traced(work: Callable[[], object], options: Sequence[str], output: Path, log: Path) -> int:
    """Do work in a forked child with strace on it; what it prints goes to ``log``. Returns the exit code of the child."""
    go_out, go_in = os.pipe()
    printed = os.open(
        log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
    )  # here: strace may be there before the child does anything
    child = os.fork()
    if child == 0:
        _in_child(work, printed, go_out)
    os.close(go_out)
    os.close(printed)
    strace = subprocess.Popen(
        ["strace", "-f", "-y", "-o", str(output), *options, "-p", str(child)], stderr=subprocess.PIPE, text=True
    )
    assert strace.stderr is not None
    said = strace.stderr.readline()
    if "attached" not in said:
        os.kill(child, signal.SIGKILL)
    os.write(go_in, b".")
    os.close(go_in)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    strace.communicate()
    if "attached" not in said:
        raise RuntimeError(f"strace could not attach: {said}")
    return code


def _in_child(work: Callable[[], object], printed: int, go: int) -> None:
    code = 1
    try:
        ctypes.CDLL(None).prctl(
            _PR_SET_PTRACER, ctypes.c_ulong(-1)
        )  # let any process trace this one; EINVAL where nobody forbids it
        os.dup2(printed, 1)
        os.read(go, 1)
        signal.alarm(_HANG_S)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def record(work: Callable[[], object], output: Path, directory: Path) -> None:
    """Do work in a forked child under strace; RuntimeError if it fails. Temporary files go to the directory."""

    def in_directory() -> None:
        tempfile.tempdir = str(directory)
        work()

    calls = ",".join(f"?{name}" for name in (*MODELLED, *FOREIGN))
    code = run_traced(in_directory, ["-xx", "-s", "1048576", "-e", f"trace={calls}"], output, Path(os.devnull))
    if code != 0:
        raise RuntimeError(f"the work that was traced ended with {code}")


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
