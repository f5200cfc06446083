"""Programs in processes that start quickly: forks of one that has done the imports.

Commands (``Warm``) are forks of a server that has imported what ``python -m penstock`` imports, no more. Programs of tests
(``popen`` and ``run``, with ``-W``, ``-c`` and ``-m``) are forks of a second one, which has imported all public names.

A server waits at a socket. A request has the arguments, the directory, the environment and the three standard streams of a command.
The server forks twice, so that the command loses its parent: it becomes a child of the process that asked, which is for that moment
the one that adopts orphans. From then on it is a process like any other, with a return code, signals and pipes of its own.
A command that a shell starts (``client``) stays a child of the fork in between, which answers with its return code.

What this leaves out is the start of the interpreter and the imports: ``test_program.py`` starts real ones, and so does a campaign.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import json
import os
import runpy
import select
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 300

CLIENT = """
import array, json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    request = {"words": sys.argv[2:], "cwd": os.getcwd(), "env": dict(os.environ), "adopted": False}
    streams = array.array("i", [0, 1, 2])
    server.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    server.sendall(json.dumps(request).encode())
    server.shutdown(socket.SHUT_WR)
    code = int(server.makefile().read())
sys.exit(code if code >= 0 else 128 - code)
"""


# The server


def serve(listener: socket.socket) -> list[str]:
    """Answer requests until the input ends. Returns in the process of a command only: its words."""
    while listener in select.select([listener, 0], [], [])[0]:
        with contextlib.suppress(ChildProcessError):  # those in between that have told their return code
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        connection = listener.accept()[0]
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        with connection.makefile("rb") as file:
            request = json.loads(file.read())
        between = os.fork()
        if between == 0:
            inner = os.fork()
            if inner == 0:
                listener.close()
                connection.close()
                become(request, streams)
                return list(request["words"])
            answer = inner if request["adopted"] else os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
            connection.sendall(str(answer).encode())
            os._exit(0)
        if request["adopted"]:
            os.waitpid(between, 0)  # then the command has its new parent: the end of the answer says so
        for stream in streams:
            os.close(stream)
        connection.close()
    os._exit(0)


def become(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Everything that a new interpreter would have been given."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["penstock", *request["words"]]
    sys.path[0] = request["cwd"]
    sys.path[1:1] = [path for path in request["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    # New ones: the old ones know what the streams of the server can do.
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    errors = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = errors  # type: ignore[misc]


def run_program(words: list[str]) -> None:
    """What ``python`` does with these words."""
    while words[0] not in ("-c", "-m"):
        assert words[0] == "-W", words
        warnings._processoptions([words[1]])  # type: ignore[attr-defined]
        words = words[2:]
    way, what, *rest = words
    sys.argv = [way, *rest]
    if way == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    sys.path[0] = ""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(what, "<string>", "exec"), vars(main))


# Those who ask


class Warm(subprocess.Popen[Any]):
    """A process of the program; ``args`` are the words after its name."""

    _one_at_a_time = threading.Lock()
    _server = "command"

    def _execute_child(self, args: Sequence[str], *given: Any) -> None:
        (_, before, _, kept, cwd, env, _, _, _, read_in, write_in, read_out, write_out, read_err, write_err, *_) = given
        assert (before, list(kept)) == (None, [])
        request = {
            "words": list(args),
            "cwd": os.fspath(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "adopted": True,
        }
        streams = [number if ours == -1 else ours for number, ours in enumerate((read_in, write_out, write_err))]
        with self._one_at_a_time, socket.socket(socket.AF_UNIX) as server:
            server.settimeout(PATIENCE_S)
            server.connect(address(self._server))
            adopt_orphans(True)
            try:
                socket.send_fds(server, [b"."], streams)
                server.sendall(json.dumps(request).encode())
                server.shutdown(socket.SHUT_WR)
                with server.makefile() as answer:
                    self.pid = int(answer.read())
            finally:
                adopt_orphans(False)
        self._child_created = True
        self._close_pipe_fds(read_in, write_in, read_out, write_out, read_err, write_err)  # type: ignore[attr-defined]


class WarmProgram(Warm):
    """A process of an interpreter; ``args`` are the words after its name."""

    _server = "program"


def popen(words: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
    """``subprocess.Popen`` of ``sys.executable`` with some words (in a campaign: an interpreter of its own)."""
    from tests.effort import is_campaign  # and Hypothesis, which the servers do not need

    assert words[0] == sys.executable
    return subprocess.Popen(words, **options) if is_campaign() else WarmProgram(words[1:], **options)


def run(
    words: Sequence[str],
    *,
    check: bool = False,
    capture_output: bool = False,
    sent: bytes | None = None,
    timeout: float | None = None,
    **options: Any,
) -> "subprocess.CompletedProcess[Any]":
    """The same for ``subprocess.run``; ``sent`` is its ``input``."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if sent is not None:
        options |= {"stdin": subprocess.PIPE}
    with popen(words, **options) as process:
        try:
            output, errors = process.communicate(sent, timeout=timeout)
        finally:
            process.kill()
    done = subprocess.CompletedProcess(words, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def adopt_orphans(wanted: bool) -> None:
    """Whether descendants of this process that lose their parent become children of it."""
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0) != 0:
        raise OSError("prctl failed")


_inputs: list[int] = []


def descriptors() -> list[int]:
    """Those of the servers, which last as long as this process."""
    return _inputs


@functools.cache
def address(kind: str = "command") -> str:
    """Where a server is; it starts with the first call, and ends with this process."""
    place = tempfile.TemporaryDirectory(prefix="warm-")
    path = str(Path(place.name) / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        words = [sys.executable, "-m", "tests.cli.warm", kind, str(listener.fileno())]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # a fork would lose other threads
        server = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, pass_fds=[listener.fileno()], env=environment)
    assert server.stdin is not None
    _inputs.append(server.stdin.fileno())
    atexit.register(_end, server, place)
    return path


def _end(server: "subprocess.Popen[bytes]", place: "tempfile.TemporaryDirectory[str]") -> None:
    server.communicate(timeout=PATIENCE_S)
    place.cleanup()


def client() -> list[str]:
    """A command line that is the program for a shell; its words follow."""
    return [sys.executable, "-I", "-S", "-c", CLIENT, address()]


if __name__ == "__main__":
    import penstock.__main__ as program

    if sys.argv[1] == "command":
        from penstock.cli.main import app as app  # that all commands are there already is what makes it quick
    else:
        import penstock as pen

        for name in pen.__all__:  # most are imported at their first use
            getattr(pen, name)

    gc.collect()
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1
    kind, listener = sys.argv[1:]
    words = serve(socket.socket(fileno=int(listener)))
    if kind == "command":
        sys.modules["__main__"] = program  # for processes that it starts
        program.main()
    else:
        run_program(words)
