"""penstock view, as a program."""

import http.client
import json
import os
import pty
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.cli.conftest import finish, start
from tokenizers import Tokenizer, models
from typer.testing import CliRunner

from penstock.cli.main import app

PATIENCE_S = 300


@contextmanager
def running(*arguments: str, environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    process = start(
        "view", *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def fetch(url: str) -> tuple[int, str]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE_S)
    connection.request("GET", f"{parts.path}?{parts.query}")
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_the_printed_address_works_until_ctrl_c_which_is_no_failure(store_path: Path) -> None:
    with running(str(store_path), "--no-browser") as process:
        url = first_line(process)
        status, body = fetch(url)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE_S)
    assert (status, process.returncode) == (200, 0)
    assert "<!doctype html>" in body
    assert out == ""
    assert errors.startswith("Ctrl-C ends it")
    assert "Traceback" not in errors
    with pytest.raises(ConnectionRefusedError):
        fetch(url)


def test_json_is_the_address_on_the_first_line_and_opens_no_browser(store_path: Path, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text("#!/bin/sh\ntouch opened\n")
    browser.chmod(0o755)
    environment = {"BROWSER": str(browser), "DISPLAY": ":9"}
    with running(str(store_path), "--json", "--watch", str(tmp_path / "run.jsonl"), environment=environment) as process:
        found = json.loads(first_line(process))
        assert list(found) == ["url"]
        assert fetch(found["url"])[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE_S) == ("", "")
    assert process.returncode == 0
    assert not (tmp_path / "opened").exists()


def test_a_browser_is_opened_in_a_terminal_and_gets_the_address_in_a_file_of_the_user(store_path: Path, tmp_path: Path) -> None:
    seen, browser = tmp_path / "seen", tmp_path / "browser"
    lines = [
        'file="${1#file://}"',
        f'ls -ld "$(dirname "$file")" > {tmp_path}/mode',
        f'cat "$file" > {seen}.new',
        f"mv {seen}.new {seen}",
    ]
    browser.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    browser.chmod(0o755)
    theirs, ours = pty.openpty()
    environment = {**os.environ, "BROWSER": str(browser), "COLUMNS": "40"}
    process = start("view", store_path, stdin=ours, stdout=ours, stderr=ours, env=environment)
    os.close(ours)
    try:
        with open(theirs, encoding="utf-8") as terminal:
            url = terminal.readline().strip()
            assert fetch(url)[0] == 200
            wait_for(seen, process)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait(PATIENCE_S)
    assert f'content="0; url={url}"' in seen.read_text()
    assert (tmp_path / "mode").read_text().startswith("drwx------")


def wait_for(file: Path, process: subprocess.Popen[bytes]) -> None:
    """Until a program has written its file."""
    end = time.monotonic() + PATIENCE_S
    while not file.exists():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_port_can_be_chosen(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["view", "--watch", str(tmp_path / "a"), "--port", str(port), "--no-browser"])
    assert result.exit_code == 2
    assert f"port {port} is not available" in result.stderr
    with running("--watch", str(tmp_path / "a"), "--port", str(port), "--json") as process:
        assert urlsplit(json.loads(first_line(process))["url"]).port == port


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "expected DATA, --run RUN or --watch FILE"),
        (["nothing-here.pen"], 3, "there is no such file or directory"),
        (["/proc/version"], 3, ""),
        (["--watch", "a", "--port", "70000"], 2, "65535"),
        (["--watch", "a", "--port", "x"], 2, "port"),
        (["s3://a/b", "--storage", "x"], 2, "expected KEY=VALUE"),
    ],
)
def test_bad_arguments_end_with_one_line(arguments: list[str], code: int, words: str) -> None:
    result = CliRunner().invoke(app, ["view", *arguments])
    assert result.exit_code == code
    assert words in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_data_that_cannot_be_opened_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY garbage")
    assert CliRunner().invoke(app, ["view", str(tmp_path / "bad.npy")]).exit_code == 3


def test_a_generation_can_be_chosen(store_path: Path) -> None:
    with running(str(store_path), "--generation", "1", "--json") as process:
        url = json.loads(first_line(process))["url"]
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE_S)
        connection.request("GET", f"{parts.path}api/about", headers={"Cookie": f"penstock={parts.query.partition('=')[2]}"})
        assert json.loads(connection.getresponse().read())["data"]["records"] == 120
        connection.close()
    assert CliRunner().invoke(app, ["view", str(store_path), "--generation", "9"]).exit_code == 3


def test_a_closed_pipe_ends_it(store_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = finish("view", store_path, "--no-browser", stdout=writing, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writing)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr


def test_tokens_are_shown_as_text_with_a_tokenizer(store_path: Path, tmp_path: Path) -> None:
    Tokenizer(models.WordLevel({"zero": 0, "one": 1, "two": 2}, unk_token="zero")).save(str(tmp_path / "tokenizer.json"))
    with running(str(store_path), "--no-browser", "--tokenizer", str(tmp_path)) as process:
        url = urlsplit(first_line(process))
        connection = http.client.HTTPConnection(url.netloc, timeout=PATIENCE_S)
        connection.request("GET", f"{url.path}?{url.query}")
        page = connection.getresponse()
        cookie = (page.headers["Set-Cookie"] or "").partition(";")[0]
        page.read()
        connection.request("GET", f"{url.path}api/record/3", headers={"Cookie": cookie})
        body = connection.getresponse().read().decode()
        connection.close()
    assert "zero one two" in body


def test_a_file_that_is_no_tokenizer_is_one_line(store_path: Path) -> None:
    result = CliRunner().invoke(app, ["view", str(store_path), "--no-browser", "--tokenizer", str(store_path)])
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1
    assert "tokenizer.json" in result.stderr
