"""An interrupt ends a program at once, whatever a server that does not answer is being asked."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.cli import warm
from tests.remote.options import s3_options

PATIENCE_S = 300
"""Far below the time-outs of the programs here, which are an hour."""

PROGRAM = """
import sys
from numpy import array
from penstock.remote.objects import ObjectInfo
from penstock.remote.fetch import Policy
from penstock.remote.url import url_path
from penstock.remote.window import RemoteOptions
place = url_path({url!r}, {options!r})
objects = place.objects
objects.policy = Policy(read_s=3600, write_s=3600, total_s=3600, hedge_s=3600)
info = ObjectInfo("x", 10, None, 0.0)
try:
    {action}
except KeyboardInterrupt:
    sys.exit(130)
"""

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\nlast-modified: Sat, 10 May 2025 10:00:00 GMT\r\n\r\n"
PARTIAL = ANSWER.replace(b"200 OK", b"206 Partial Content\r\ncontent-range: bytes 0-9/10")

ACTIONS = {
    "head": ("objects.head('x')", b""),
    "list": ("objects.list('')", b""),
    "put": ("objects.put('x', b'data')", b""),
    "put_new": ("objects.put_new('x', b'data')", b""),
    "delete": ("objects.delete('x')", b""),
    "the body of a small object": ("objects.read_all('x', 100)", ANSWER + b"01234"),
    "the begin of a range": ("objects.read(info, 0, 10)", b""),
    "the rest of a range": ("objects.read(info, 0, 10)", PARTIAL + b"01234"),
    "a range for the window": (
        "RemoteOptions().open_files([(place, info)]).hold(array([0]), array([0]), array([10])).__enter__()",
        b"",
    ),
}


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """Takes connections, and answers nothing by itself."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        yield server


def interrupt(program: str, server: socket.socket, answer: bytes) -> tuple[int, str]:
    """The exit code and the errors of a program that is interrupted after its first request got this part of an answer."""
    words = [sys.executable, "-c", program]
    with warm.popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            with server.accept()[0] as connection:
                connection.settimeout(PATIENCE_S)
                assert connection.recv(1 << 16)
                connection.sendall(answer)
                process.send_signal(signal.SIGINT)
                errors = process.communicate(timeout=PATIENCE_S)[1]
        finally:
            process.kill()
        return process.returncode, errors


@pytest.mark.parametrize("what", ACTIONS)
@pytest.mark.sampled(2)
def test_an_interrupt_ends_every_request(server: socket.socket, what: str) -> None:
    action, answer = ACTIONS[what]
    options = s3_options(f"http://127.0.0.1:{server.getsockname()[1]}")
    program = PROGRAM.format(url="s3://data/x", options=options, action=action)
    assert interrupt(program, server, answer) == (130, "")


def test_an_interrupted_command_says_so_in_one_line(server: socket.socket) -> None:
    url = f"http://127.0.0.1:{server.getsockname()[1]}/x.npy"
    action = f"sys.argv = ['penstock', 'info', {url!r}]; from penstock.cli.main import main; main()"
    code, errors = interrupt(PROGRAM.format(url=url, options={}, action=action), server, b"")
    assert (code, errors) == (130, "penstock: interrupted; nothing that was committed is lost\n")
