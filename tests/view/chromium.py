"""A real browser without a screen: Chromium, told what to do by JSON through a pipe (--remote-debugging-pipe)."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0
HEIGHT = 1600  # of the window: images below it are not loaded
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe", "about:blank",
)  # fmt: skip
KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Escape": 27, "Enter": 13}
READY = (
    "document.readyState === 'complete' && !!document.querySelector('#head h1') && !document.body.classList.contains('busy')"
    " && [...document.images].every((one) => one.complete || one.getBoundingClientRect().top > innerHeight)"
)


class BrowserError(Exception):
    """The browser refused a command, or something did not come about in time."""


@dataclass
class Browser:
    """One tab of a browser that runs. ``requests`` are the addresses it asked for, ``complaints`` what it wrote to its console."""

    write: int
    read: int
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    _session: str | None = None
    _number: int = 0
    _left: bytes = b""
    _ready: list[dict[str, Any]] = field(default_factory=list)

    def open_tab(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command."""
        self._number += 1
        number = self._number
        session = {} if self._session is None else {"sessionId": self._session}
        os.write(self.write, json.dumps({"id": number, "method": method, "params": parameters, **session}).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            message = self._next(deadline, method)
            if message.get("id") == number:
                if "error" in message:
                    raise BrowserError(f"{method}: {message['error']}")
                found: dict[str, Any] = message["result"]
                return found

    def _next(self, deadline: float, method: str) -> dict[str, Any]:
        while not self._ready:
            if not select.select([self.read], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise BrowserError(f"{method}: no answer in {PATIENCE_S} seconds")
            data = os.read(self.read, 1 << 20)
            if not data:
                raise BrowserError(f"{method}: the browser has ended")
            *whole, self._left = (self._left + data).split(b"\0")
            self._ready += [json.loads(one) for one in whole]
        message = self._ready.pop(0)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"].get("exception", parameters["exceptionDetails"])))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str(parameters["args"]))
        elif method == "Log.entryAdded" and "the server responded with a status of" not in parameters["entry"]["text"]:
            self.complaints.append(parameters["entry"]["text"])

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise BrowserError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until an expression is true; the page is looked at after every frame."""
        script = (
            f"new Promise((done) => {{ const end = performance.now() + {PATIENCE_S * 900}; const look = () => "
            f"({condition}) ? done(true) : performance.now() > end ? done(false) : setTimeout(look, 16); look(); }})"
        )
        if not self.run(script):
            raise BrowserError(f"this did not come about: {condition}; the page says {self.run('document.body.innerText')[:400]!r}")

    def show(self, url: str) -> None:
        """A page, drawn to the end."""
        self.call("Page.navigate", url="about:blank")
        self.wait("document.readyState === 'complete' && location.href === 'about:blank'")
        self.call("Page.navigate", url=url)
        self.wait(f"location.href !== 'about:blank' && {READY}")

    def look(self, width: int, *, dark: bool = False) -> None:
        """The width of the window, and which of the two themes."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=HEIGHT, deviceScaleFactor=1, mobile=width < 600)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])

    def press(self, key: str) -> None:
        """A key, as a keyboard sends it."""
        text = {"text": key} if len(key) == 1 else {}
        code = {"windowsVirtualKeyCode": KEYS.get(key, ord(key[0])), "key": key}
        self.call("Input.dispatchKeyEvent", type="keyDown", **text, **code)
        self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def photograph(self, path: Path, *, most_height: int = HEIGHT) -> None:
        """All of the page, down to a limit, as a PNG. Canvases are drawn in the frame after their size is known."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))")
        height = min(
            most_height,
            max(300, int(self.run("Math.ceil(document.querySelector('#main').getBoundingClientRect().bottom + scrollY)"))),
        )
        width = int(self.run("innerWidth"))
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        image = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(image["data"]))


def find_browser() -> str:
    return next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), "chromium")


@contextmanager
def browsing(program: str) -> Iterator[Browser]:
    """A browser with an empty profile; it has ended afterwards."""
    to_browser, ours = os.pipe()
    theirs, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        shell = ["sh", "-c", f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}', program, f"--user-data-dir={profile}", *FLAGS]
        with subprocess.Popen(
            shell, pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        ) as process:
            os.close(to_browser)
            os.close(from_browser)
            browser = Browser(ours, theirs)
            try:
                browser.open_tab()
                yield browser
            finally:
                with suppress(BrowserError, OSError):
                    browser._session = None
                    browser.call("Browser.close")
                os.close(ours)
                os.close(theirs)
                process.terminate()
