"""A real object store on loopback: SeaweedFS, in a directory of its own, on ports of its own.

::

    with serving(directory) as server:
        penstock.open(f"{server.url}/a.npy", storage_options=server.storage_options)
        server.stop()       # killed: clients find nobody
        server.start()      # back, with the same address and data
"""

import contextlib
import os
import random
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.remote.options import s3_options

from penstock.errors import PenstockError
from penstock.remote.fetch import Policy
from penstock.remote.url import url_path

_BUCKET = "data"
_PORTS = ("master.port", "volume.port", "volume.port.public", "filer.port", "s3.port", "admin.port")
_PORTS += ("master.port.grpc", "volume.port.grpc", "filer.port.grpc", "s3.port.grpc", "admin.port.grpc")


class Seaweed:
    """A server with one bucket; it answers when ``start`` returns."""

    def __init__(self, directory: Path) -> None:
        ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
        self.url = f"s3://{_BUCKET}"
        self.endpoint = f"http://127.0.0.1:{ports['s3.port']}"
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._command = [
            str(Path(sysconfig.get_path("scripts")) / "weed"),
            "mini",
            f"-dir={directory}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-bucket={_BUCKET}",
            "-webdav=false",
            "-admin.ui=false",
            "-master.telemetry=false",
            "-master.electionTimeout=1s",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.localSocket={directory}/s3.sock",
            f"-filer.localSocket={directory}/filer.sock",
            *(f"-{name}={port}" for name, port in ports.items()),
        ]

    @property
    def storage_options(self) -> dict[str, Any]:
        return s3_options(self.endpoint)

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Start, with the data of the last time."""
        assert self._process is None
        environment = os.environ | {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        environment |= {"GOMAXPROCS": "1", "GOGC": "200"}  # less CPU time
        with open(self._directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self._directory, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        self._wait_until_ready(self._process)

    def stop(self) -> None:
        """Kill. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _wait_until_ready(self, process: "subprocess.Popen[bytes]") -> None:
        # A client of its own: the policies of others are not disturbed.
        objects = url_path(self.url, self.storage_options | {"user_agent": "starting"}).objects
        objects.policy = Policy(tries=1, connect_s=1, read_s=2, write_s=2)
        until = time.monotonic() + 300
        try:
            while True:
                try:
                    # An object with bytes: an empty one needs no volume, and volumes come last.
                    return objects.put("ready", b"ready")
                except PenstockError as error:
                    if process.poll() is not None or time.monotonic() > until:
                        log = (self._directory / "log").read_text()[-3000:]
                        raise RuntimeError(f"SeaweedFS does not answer: {error}\n{log}") from error
                    time.sleep(0.05)
        finally:
            objects.close()


def _free_ports(count: int) -> list[int]:
    """Ports below those that the system gives to connections, so that none is taken while the server is down."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(10_000, 32_000), 2_000):
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"expected {count} free ports, found {len(found)}")


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[Seaweed]:
    """A server that answers; it ends with the block."""
    server = Seaweed(directory)
    try:
        server.start()
        yield server
    finally:
        server.stop()
