"""What holds for every command: help, exit codes, one line for an error, and nothing out of data that could steer a terminal."""

import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer.main
from tests.cli.conftest import PATIENCE_S, Run, Seen, command, finish

import penstock as pen
from penstock.cli.main import app
from penstock.cli.terminal import clip, safe

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]

HOSTILE = {
    "color": "\x1b[31mEVIL",
    "cursor": "\x1b[2J\x1b[1;1HEVIL",
    "link": "\x1b]8;;http://evil.example\x1b\\EVIL\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;RVZJTA==\x07",
    "title": "\x1b]0;EVIL\x07",
    "C1": "\x9b31mEVIL\x9d0;EVIL\x9c",
    "direction": "abc\u202efdp.exe\u2066\u2069\u200f",
    "invisible": "a\u200bb\ufeffc\u2060d\u00ade",
    "tags": "a\U000e0041\U000e0042",
    "lines": "a\rb\nc\vd\x0ce\x85f\u2028g\u2029h",
    "erase": "password\x08\x08\x08\x7f\x7f",
    "null": "a\x00b",
    "markup": "[red]EVIL[/red] :boom: [link=http://evil.example]x[/link] [/]",
    "long": "EVIL" * 50_000,
}


def raw(output: str) -> set[str]:
    """What a terminal would obey, or not show."""
    return {letter for letter in output if letter != "\n" and (not letter.isprintable() or unicodedata.category(letter)[0] == "C")}


# Help and arguments


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.sampled(2)
def test_every_help_page_ends_with_examples(run: Run, name: str) -> None:
    result = run(name, "--help", columns=200)
    assert result.exit_code == 0
    assert f"penstock {name}" in result.stdout.partition("Examples")[2]


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.sampled(2)
def test_every_help_page_fits_40_columns(run: Run, name: str) -> None:
    assert max(map(len, run(name, "--help", columns=40).stdout.splitlines())) <= 40


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_one_line_and_exit_code_2(run: Run, name: str) -> None:
    result = run(name, "--no-such-option")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "--no-such-option" in result.stderr


def test_an_unknown_command_is_one_line_and_exit_code_2(run: Run) -> None:
    result = run("no-such-command")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "penstock: No such command 'no-such-command'; see penstock --help\n"


def test_without_arguments_the_help_is_shown(run: Run) -> None:
    assert all(f" {name} " in run(columns=200).output for name in COMMANDS)


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.sampled(2)
def test_the_help_page_without_any_command_loaded_is_the_same(run: Run, columns: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": str(columns), "TERMINAL_WIDTH": str(columns)},
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout == run("--help", columns=columns).stdout


def test_the_help_page_loads_neither_numpy_nor_the_library() -> None:
    code = "import sys; sys.argv[1:] = ['--help']; from penstock.cli.main import main\n"
    code += "try: main()\nexcept SystemExit: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "penstock.cli.terminal" in loaded
    assert {"numpy", "penstock.records", "penstock.loader", "pydantic"}.isdisjoint(loaded)


def test_python_m_penstock_is_the_program() -> None:
    done = subprocess.run(command("--version"), capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == f"penstock {pen.__version__}\n"


def test_nothing_there_is_exit_code_3(run: Run, tmp_path: Path) -> None:
    result = run("info", tmp_path / "nothing")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == f"penstock: {tmp_path}/nothing: there is no such file or directory\n"


def test_a_closed_pipe_ends_quietly(store: Path) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        done = subprocess.run(command("info", store), stdout=theirs, stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False)
    finally:
        os.close(theirs)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_terminal_without_unicode_gets_numbers(tmp_path: Path) -> None:
    pen.convert({"text": ["smørrebrød"]}, tmp_path / "a.pen")
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command("head", tmp_path / "a.pen"), capture_output=True, env=env, timeout=PATIENCE_S, check=True)
    assert b"sm\\xf8rrebr\\xf8d" in done.stdout


def test_an_interrupt_during_the_import_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")  # Ctrl-C at that very moment
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command("--version"), capture_output=True, text=True, env=env, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "penstock: interrupted; nothing was begun\n")


# One of a thing


def test_one_record_is_not_records(run: Run, tmp_path: Path) -> None:
    pen.convert({"x": [7]}, tmp_path / "a.pen")
    for words in (
        ["info"],
        ["info", "--generations"],
        ["verify"],
        ["gc"],
        ["convert"],
        ["where", "--tail=drop", "--epochs=1", "0"],
    ):
        result = run(words[0], tmp_path / "a.pen", *words[1:], *([tmp_path / "b.pen"] if words == ["convert"] else []))
        assert result.exit_code in (0, 2), result.output
        assert re.search(r"\b1 (record|epoch|file|batche|rank|place)s\b", result.output) is None, result.output
    result = run("verify-resume", tmp_path / "a.pen", "--steps", 1, "--points", 0)
    assert "a run of 1 batch, saved and resumed at 1 place: " in result.stdout
    assert "of 2, 1 rank\n" in re.sub(" +\n", "\n", run("shuffle-report", "--records", 8, "--batch-size", 2).stdout)


# Completion


def complete(shell: str, **env: str) -> "subprocess.CompletedProcess[str]":
    settings = {**os.environ, "_PENSTOCK_COMPLETE": f"complete_{shell}", **env}
    return finish(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=settings)


def test_the_completion_of_bash_knows_commands_and_leaves_data_to_files() -> None:
    assert complete("bash", COMP_WORDS="penstock\nrebal", COMP_CWORD="1").stdout.split() == ["rebalance"]
    assert complete("bash", COMP_WORDS="penstock\ninfo\n/tm", COMP_CWORD="2").stdout.strip() == ""  # then bash names files:
    command = f"{sys.executable} -m penstock --show-completion; true"  # which shell it is for is seen from its parents
    script = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout
    assert "complete -o default -F _penstock_completion penstock" in script


# Text out of data


@pytest.mark.parametrize("kind", HOSTILE)
def test_safe_text_has_nothing_that_a_terminal_obeys(kind: str) -> None:
    assert raw(safe(HOSTILE[kind])) == raw(clip(HOSTILE[kind], 20)) == set()
    assert len(clip(HOSTILE[kind], 20)) < 20 * 10 + 30


@pytest.mark.parametrize(
    "words",
    [
        ["info"],
        ["head"],
        ["head", "--json"],
        ["info", "--json"],
        ["show", "0"],
        ["verify"],
        ["convert"],
        ["head", "--fields", "\x1b"],
    ],
)
def test_hostile_texts_reach_nobody(run: Run, tmp_path: Path, words: list[str]) -> None:
    pq.write_table(pa.table({f"field{number}": [text] for number, text in enumerate(HOSTILE.values())}), tmp_path / "x.parquet")
    target = [tmp_path / "out.pen"] if words == ["convert"] else []
    result = run(words[0], tmp_path / "x.parquet", *words[1:], *target, columns=60)
    assert result.exit_code == (2 if "--fields" in words else 0), result.output
    assert raw(result.output) == set()
    assert "EVIL" in result.stdout or words[0] != "head" or result.exit_code == 2


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_field_names_reach_nobody(run: Run, tmp_path: Path, kind: str) -> None:
    pq.write_table(pa.table({HOSTILE[kind]: [1, 2]}), tmp_path / "x.parquet")
    for words in (["info"], ["head", "--json"], ["verify"]):
        result = run(words[0], tmp_path / "x.parquet", *words[1:])
        assert raw(result.output) == set(), result.output
        assert len(result.output) < 20_000
        if not HOSTILE[kind].isprintable() or kind == "long":  # a printable name is a field like any other
            assert (result.exit_code, result.stdout) == (3, ""), result.output
            assert result.stderr.count("\n") == 1


def test_markup_is_shown_as_it_is(run: Run, tmp_path: Path) -> None:
    pen.convert({"text": [HOSTILE["markup"]]}, tmp_path / "a.pen")
    assert HOSTILE["markup"] in run("head", tmp_path / "a.pen", columns=200).stdout


@pytest.mark.parametrize("kind", ["color", "link", "C1", "direction", "invisible", "lines", "markup"])
def test_hostile_file_names_reach_nobody(run: Run, tmp_path: Path, kind: str) -> None:
    name = HOSTILE[kind].replace("/", "_")
    for words in (["info", f"{name}.npy"], ["head", f"{name}/b.npy"], ["gc", name], ["rebalance", name], ["verify", f"{name}.rox"]):
        result = run(words[0], tmp_path / words[1])
        assert (result.exit_code, raw(result.output)) == (3, set()), result.output
        assert result.output.count("\n") == 1
    np.save(tmp_path / f"{name}.npy", np.arange(3))
    for words in (["info"], ["head"], ["verify"], ["convert"]):
        result = run(words[0], tmp_path / f"{name}.npy", *([tmp_path / f"{name}.pen"] if words == ["convert"] else []))
        assert (result.exit_code, raw(result.output)) == (0, set()), result.output


@pytest.mark.parametrize("kind", ["color", "link", "C1"])
def test_hostile_arguments_reach_nobody(run: Run, kind: str) -> None:
    text = HOSTILE[kind]
    for words in ([text], ["info", f"--{text}"], ["info", "x", "--generation", text], ["info", "x", "--storage", text]):
        result = run(*words)
        assert (result.exit_code, raw(result.output)) == (2, set()), result.output


def test_a_terminal_gets_colors_of_ours_only(in_terminal: Callable[..., Seen], tmp_path: Path) -> None:
    pen.convert({"text": ["\x1b[31mEVIL", "\x9b31mEVIL"], "x": [[1, 2], [3, 4]]}, tmp_path / "a.pen")
    target = tmp_path / "\x1b]0;EVIL\x07.shard"  # the name is the title of a progress bar, too
    for words in (["head", tmp_path / "a.pen"], ["convert", tmp_path / "a.pen", target, "--fields", "x"]):
        seen = in_terminal(*words, columns=120)
        assert seen.exit_code == 0, seen.output
        assert "\x1b[36m" in seen.output
        assert [part for part in ("\x1b]", "\x1b[31m", "\x9b", "\x07") if part in seen.output] == []
    assert target.exists()


def test_secrets_in_a_url_are_not_shown(run: Run) -> None:
    result = run("info", "s3://key:secret@bucket/train.pen")
    assert result.exit_code == 2
    assert "secret" not in result.output
