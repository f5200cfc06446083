"""Every command, under the conditions that are the same for all: narrow, without a terminal, without colors, unread, interrupted,
with nothing or the wrong thing to read, with nowhere to write."""

import atexit
import ctypes
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import PATIENCE_S, Run, Seen, command, finish, start, watch
from tests.cli.test_program import COMMANDS, raw
from tests.effort import every, is_campaign
from tests.remote.options import s3_options
from tests.report.conftest import open_fonts

import penstock as pen
import penstock.cli.demo

WORDS = {
    "info": "DATA",
    "head": "DATA -n 2",
    "show": "DATA 7",
    "explain": "DATA 1 --batch-size 8",
    "where": "DATA 7 --batch-size 8",
    "blame": "RUN --trust",
    "replay": "DATA 1 --batch-size 8",
    "certify": "--of DATA --steps 4 --batch-size 8",
    "diff": "RUN RUN --trust",
    "plan": "DATA --batch-size 8",
    "convert": "DATA NEW.pen",
    "index": "DATA",
    "rebalance": "DATA",
    "gc": "DATA --keep 1 --keep-hours 0",
    "verify": "DATA",
    "verify-resume": "DATA --batch-size 8 --steps 4",
    "bench": "DATA --batch-size 8 --seconds 0.1",
    "shuffle-report": "DATA --batch-size 8",
    "doctor": "DATA",
    "view": "DATA --no-browser",
    "demo": "NEW --records 2000 --framework numpy",
}
"""Arguments with which a command works: on DATA, a store; on RUN, which has data of its own; to NEW, a place where nothing is."""

READING = [name for name, words in WORDS.items() if "DATA" in words]
STORES_ONLY = ("gc", "rebalance")
WIDTH = 40


@cache
def logged_run() -> str:
    """A run of a few steps, with data that its log names."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-run-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    np.save(directory / "x.npy", np.arange(80))
    loader = pen.Loader(pen.open(directory / "x.npy").shuffle(seed=7), 8, threads=0)
    with pen.LossLog(directory / "run", loader, data=directory / "x.npy") as log:
        for batch in loader:
            log(np.where(next(iter(batch.values())) == 3, 9.0, 1.0))
    return str(directory / "run")


def words_of(name: str, **places: object) -> list[str]:
    """A command with its arguments."""
    words = [name, *WORDS[name].split()]
    places |= {"RUN": logged_run()} if "RUN" in words else {}
    for place, path in places.items():
        words = [word.replace(place, str(path)) for word in words]
    return words


def tree(directory: Path) -> dict[str, bytes | None]:
    """Everything below a directory."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in directory.rglob("*")}


def copy_of(store: Path, name: str) -> Path:
    """A store for one command: a resume in ``bench`` is refused, rightly, where ``rebalance`` has changed the data meanwhile."""
    return Path(shutil.copytree(store, store.with_name(f"{name}.pen")))


def complaints(check: Callable[[str], object], names: Sequence[str]) -> dict[str, str]:
    """What a check says of commands; two at a time, because most of it is the start of a process."""

    def complaint(name: str) -> str | None:
        try:
            check(name)
        except AssertionError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(2) as threads:
        found = dict(zip(names, threads.map(complaint, names), strict=True))
    return {name: told for name, told in found.items() if told is not None}


@pytest.fixture(scope="module", autouse=True)
def fonts_are_open() -> None:
    open_fonts()


def test_the_table_has_every_command() -> None:
    assert sorted(WORDS) == COMMANDS


# Narrow, and without a terminal


def view_until_served(store: Path) -> tuple[int, str, str]:
    """What the one command that does not end by itself says until it is ended."""
    settings = {**os.environ, "COLUMNS": str(WIDTH)}
    words = words_of("view", DATA=store)
    with start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=settings) as process:
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
        return process.returncode, first + rest, errors


def fits(line: str) -> bool:
    """Whether a line is not too wide; one with a path or an address that is itself too wide may be."""
    return len(line) <= WIDTH or any(len(word) > WIDTH and "/" in word for word in line.split())


@pytest.mark.parametrize("name", [name for name in WORDS if is_campaign() or name != "demo"])
@pytest.mark.sampled(2)
def test_it_is_narrow_and_without_escapes(run: Run, name: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for constant, less in {"SECONDS": 0.1, "STEPS": 30, "DIES_AT": 13}.items():
        monkeypatch.setattr(penstock.cli.demo, constant, less)
    if name == "view":
        code, output, errors = view_until_served(store)
    else:
        result = run(*words_of(name, DATA=store, NEW=store.with_name("new")), columns=WIDTH)
        code, output, errors = result.exit_code, result.stdout, result.stderr
    assert code in ((0, 1) if name == "doctor" else (0,)), output + errors
    assert output.strip()
    assert [line for line in output.splitlines() if not fits(line)] == []
    assert (raw(output), raw(errors)) == (set(), set())


# A terminal without colors


def colors(output: str) -> set[str]:
    """The sequences that set a color; bold and dim ones set none."""
    found = re.findall(r"\x1b\[[0-9;:]*m", output)
    return {one for one in found if any(30 <= int(part) <= 49 or int(part) >= 90 for part in re.findall(r"\d+", one))}


def in_terminal_until(said: bytes, words: list[str], env: dict[str, str]) -> str:
    """What a terminal gets to see of a command until it has said something; then it is interrupted."""
    ours, theirs = pty.openpty()
    settings = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **env}
    try:
        with start(*words, stdin=theirs, stdout=theirs, stderr=theirs, env=settings) as process:
            os.close(theirs)
            seen = b""
            try:
                while said not in seen and select.select([ours], [], [], PATIENCE_S)[0]:
                    seen += os.read(ours, 1 << 16)
            finally:
                process.send_signal(signal.SIGINT)
            return seen.decode() + watch(process, ours)[1]
    finally:
        os.close(ours)


LASTING = {"view": b"Ctrl-C", "demo": b"Stream it"}
"""What commands say that are not waited for."""


def test_no_command_uses_colors_where_they_are_not_wanted(in_terminal: Callable[..., Seen], store: Path, tmp_path: Path) -> None:
    def check(name: str) -> None:
        words, env = words_of(name, DATA=copy_of(store, name), NEW=tmp_path / "new"), {"NO_COLOR": "1"}
        if name in LASTING:
            output = in_terminal_until(LASTING[name], words, env)
            assert LASTING[name].decode() in output, output
        else:
            seen = in_terminal(*words, env=env)
            assert seen.exit_code in ((0, 1) if name == "doctor" else (0,)), seen.output
            output = seen.output
        assert colors(output) == set()
        assert "\N{UPPER HALF BLOCK}" not in output  # of which pictures are drawn, in colors

    assert complaints(check, every(5, list(WORDS))) == {}


# Nobody reads what it says


def test_a_closed_pipe_ends_every_command_quietly(store: Path, tmp_path: Path) -> None:
    def check(name: str) -> None:
        ours, theirs = os.pipe()
        os.close(ours)
        words = words_of(name, DATA=copy_of(store, name), NEW=tmp_path / "new")
        try:
            done = finish(*words, stdout=theirs, stderr=subprocess.PIPE, text=True)
        finally:
            os.close(theirs)
        assert done.returncode == 141, done.stderr
        assert [word for word in ("Traceback", "Exception", "Error") if word in done.stderr] == [], done.stderr

    assert complaints(check, every(5, list(WORDS), 1)) == {}


# Ctrl-C


def interrupted(words: list[str], begun: Callable[["subprocess.Popen[str]"], object]) -> tuple[int, str]:
    """The exit code and the last words of a process that is interrupted once it has begun."""
    with start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            begun(process)
            process.send_signal(signal.SIGINT)
            errors = process.communicate(timeout=PATIENCE_S)[1]
        finally:
            process.kill()
        return process.returncode, errors


def check_interrupt(code: int, errors: str) -> None:
    assert code == 130, errors
    assert re.fullmatch("penstock: interrupted; .*\n", errors), errors


def test_an_interrupt_ends_every_command_that_waits_for_data(tmp_path: Path) -> None:
    def check(name: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:  # takes the request, and never answers
            server.settimeout(PATIENCE_S)
            address = f"http://127.0.0.1:{server.getsockname()[1]}"
            url = "s3://data/a.pen" if name in STORES_ONLY else f"{address}/a.npy"
            options = s3_options(address).items() if name in STORES_ONLY else ()
            words = [*words_of(name, DATA=url, NEW=tmp_path / "new"), *(f"--storage={key}={value}" for key, value in options)]
            waiting: list[socket.socket] = []
            try:
                check_interrupt(*interrupted(words, lambda process: waiting.append(server.accept()[0])))
            finally:
                for connection in waiting:
                    connection.close()

    assert complaints(check, every(5, READING, 2)) == {}
    assert tree(tmp_path) == {}


def test_an_interrupt_ends_the_demo(tmp_path: Path) -> None:
    def begun(process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        assert process.stdout.readline()

    check_interrupt(*interrupted(words_of("demo", NEW=tmp_path / "new"), begun))


# Nothing, and the wrong thing


def check_refusal(run: Run, words: list[str], path: Path, directory: Path) -> None:
    before = tree(directory)
    result = run(*words)
    assert (result.exit_code in (2, 3), result.stdout) == (True, ""), result.output
    assert result.stderr.count("\n") == 1, result.stderr
    assert str(path) in result.stderr
    assert tree(directory) == before


@pytest.mark.parametrize("name", READING)
def test_a_path_that_is_not_there_is_named(run: Run, name: str, tmp_path: Path) -> None:
    check_refusal(run, words_of(name, DATA=tmp_path / "nothing", NEW=tmp_path / "new"), tmp_path / "nothing", tmp_path)


@pytest.mark.parametrize("name", [name for name in WORDS if name != "verify" and "RUN" not in WORDS[name]])
def test_a_file_of_another_kind_is_named(run: Run, name: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing that could be records\n")
    new = tmp_path / ("new" if name in READING else "notes.txt")
    check_refusal(run, words_of(name, DATA=tmp_path / "notes.txt", NEW=new), tmp_path / "notes.txt", tmp_path)


def test_verify_finds_that_a_file_is_of_another_kind(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing that could be records\n")
    result = run("verify", tmp_path / "notes.txt")
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.startswith(f"{tmp_path}/notes.txt\n")


# Nowhere to write

TARGETS = {
    "convert": "DATA TARGET.pen",
    "head": "DATA --fields image --save TARGET",
    "show": "DATA 7 --fields image --save TARGET",
    "bench": "DATA --batch-size 8 --seconds 0.1 --html TARGET.html",
    "shuffle-report": "DATA --batch-size 8 --html TARGET.html",
    "plan": "DATA --batch-size 8 --html TARGET.html",
    "demo": "TARGET --records 2000",
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.sampled(2)
def test_a_target_that_cannot_be_written_is_one_line(run: Run, name: str, store: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = tree(tmp_path)
    for target in (Path("/proc/nowhere"), tmp_path / "file" / "below"):
        words = TARGETS[name].replace("DATA", str(store)).replace("TARGET", str(target)).split()
        result = run(name, *words)
        assert result.exit_code == 4, result.output
        *remarks, last = result.stderr.splitlines()
        assert remarks in ([], ["40 records"]), result.stderr  # a conversion says first how many there are
        assert last.startswith("penstock: ")
        assert str(target) in last
    assert tree(tmp_path) == before


PRCTL = ctypes.CDLL(None).prctl
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1


def obey_modes() -> None:
    """In a process to be: the mode of a directory holds for the superuser, too. (Nobody else may call this, or needs to.)"""
    PRCTL(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


@pytest.fixture
def read_only(store: Path) -> Iterator[Path]:
    """A store in which nothing can be written."""
    everything = [store.parent, store, *store.rglob("*")]
    for path in everything:
        path.chmod(0o555)
    yield store
    for path in everything:
        path.chmod(0o755)


@pytest.mark.parametrize("name", every(2, STORES_ONLY))
def test_a_store_that_cannot_be_written_stays_as_it_is(name: str, read_only: Path) -> None:
    before = tree(read_only)
    words = command(*words_of(name, DATA=read_only))
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False, preexec_fn=obey_modes)
    assert (done.returncode, done.stdout) == (4, ""), done
    assert re.fullmatch("penstock: .*\n", done.stderr), done.stderr
    assert str(read_only) in done.stderr
    assert tree(read_only) == before


def test_doctor_says_that_it_cannot_write_beside_the_data(read_only: Path) -> None:
    words = command("doctor", read_only)
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False, preexec_fn=obey_modes)
    assert (done.returncode in (0, 1), done.stderr) == (True, ""), done
    assert "disk speed: not measured: nothing may be written there" in done.stdout
