"""Every command opens every format of token files; what a file does not tell is given with --option."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import PATIENCE_S, Run, start
from tests.formats import token_files as made

import penstock as pen
from penstock.formats.tokens_writer import write_tokens

EOS = 7
RNG = np.random.default_rng(3)
DOCUMENTS = [np.append(RNG.integers(100, 60_000, length), EOS).astype("<u2") for length in RNG.integers(0, 60, 40)]
LINE = np.concatenate(DOCUMENTS)

FORMATS: dict[str, tuple[str, list[str]]] = {
    "rox": ("tokens.rox", []),
    "megatron": ("m.idx", []),
    "megatron by its prefix": ("m", []),
    "megatron documents": ("m.bin", ["records=document"]),
    "olmo": ("o.npy", ["documents=true"]),
    "olmo, type given": ("o.npy", ["dtype=uint16", "documents=true"]),
    "olmo with masks": ("o.npy", ["dtype=u2", "documents=true", "loss=PLACE/mask.npy"]),
    "nanogpt": ("n.bin", ["dtype=uint16", "block_size=64"]),
    "nanogpt by separator": ("n.bin", ["dtype=u2", f"separator={EOS}"]),
    "llm.c": ("c.bin", ["block_size=64"]),
    "datatrove": ("d.ds", []),
    "datatrove without masks": ("d.ds", ["loss=false"]),
    "litdata": ("litdata", []),
}
"""A name, and options that it is opened with."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokens")
    write_tokens([LINE], directory / "tokens.rox", dtype="u2", block_size=64)
    made.write_megatron(directory / "m", DOCUMENTS)
    made.write_olmo(directory / "o.npy", DOCUMENTS)
    (directory / "n.bin").write_bytes(LINE.tobytes())
    made.write_llm_c(directory / "c.bin", LINE)
    made.write_datatrove(directory / "d.ds", DOCUMENTS, [one % 2 for one in DOCUMENTS])
    made.write_litdata(directory / "litdata", [DOCUMENTS[:9], DOCUMENTS[9:]], "no_header_numpy:5")
    (directory / "mask.npy").write_bytes((LINE % 2).astype("?").tobytes())
    return directory


@pytest.fixture(params=FORMATS)
def words(request: pytest.FixtureRequest, place: Path) -> list[str]:
    """The words that open one of the formats."""
    name, options = FORMATS[request.param]
    return [str(place / name), *(f"--option={one.replace('PLACE', str(place))}" for one in options)]


def tokens_shown(records: list[dict[str, Any]]) -> list[int]:
    return [token for record in records for token in record["fields"]["tokens"]]


@pytest.mark.sampled(2)
def test_info_head_show_and_verify(run_json: Callable[..., Any], words: list[str]) -> None:
    found = run_json("info", *words)
    assert found["fields"]["tokens"]["dtype"] == "uint16"
    assert found["files"]["bytes"] >= LINE.nbytes
    shown = run_json("head", *words, "-n", 1000)
    assert (tokens_shown(shown), len(shown)) == (LINE.tolist(), found["records"])
    assert tokens_shown(run_json("show", words[0], 0, *words[1:])) == tokens_shown(shown[:1])
    checked = run_json("verify", *words)
    assert (checked["records"], checked["ok"]) == (found["records"], True)


@pytest.mark.sampled(2)
def test_explain_and_where(run_json: Callable[..., Any], words: list[str]) -> None:
    data, *options = words
    told = run_json("explain", data, 2, "--batch-size", 4, *options)
    assert len(told["ids"]) == 4
    record = int(told["ids"][0])
    assert 2 in [one["step"] for one in run_json("where", data, record, "--batch-size", 4, *options)]


TARGETS = ("new.pen", "new.rox", "new.idx", "new.ds", "new.bin")


def test_convert(run_json: Callable[..., Any], words: list[str], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    data, *options = words
    target = TARGETS[list(FORMATS).index(request.node.callspec.params["words"]) % len(TARGETS)]
    told = run_json("convert", data, tmp_path / target, "--fields", "tokens", *options)
    assert min(told["bytes_in"], told["bytes_out"]) >= LINE.nbytes
    with pen.open(tmp_path / target, **({"dtype": "u2"} if target == "new.bin" else {})) as source:
        assert np.concatenate(list(source["tokens"][:])).tolist() == LINE.tolist()


def test_every_other_command_takes_options_too(run_json: Callable[..., Any], place: Path) -> None:
    words = [place / "n.bin", "--option", "dtype=u2", "-o", f"separator={EOS}"]
    assert run_json("bench", *words, "--batch-size", 4, "--seconds", 0.1)
    assert run_json("shuffle-report", *words, "--batch-size", 4)
    assert run_json("doctor", *words)["findings"]
    assert run_json("verify-resume", *words, "--batch-size", 4, "--steps", 3, "--points", "1")["resumes"]
    with start("view", *words, "--json", "--no-browser", stdout=-1, stderr=-1, text=True) as process:
        try:
            assert json.loads(process.stdout.readline())["url"].startswith("http://127.0.0.1:")
        finally:
            process.kill()
            process.communicate(timeout=PATIENCE_S)


@pytest.mark.usefixtures("warm_processes")
def test_a_killed_run_is_resumed_with_the_same_options(run_json: Callable[..., Any], place: Path) -> None:
    words = ["verify-resume", place / "n.bin", "--option", "dtype=u2", "--batch-size", 1, "--steps", 2, "--points", 1, "--kill"]
    assert run_json(*words)["killed"]


def test_what_must_be_given_is_named(run: Run, place: Path) -> None:
    for name in ("n.bin", "o.npy"):
        result = run("info", place / name)
        assert result.exit_code == 3
        assert "--option dtype=uint16" in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["info", "n.bin", "--option", "dtype"], 2, "expected KEY=VALUE, got 'dtype'"),
        (["info", "n.bin", "--option", "=u2"], 2, "expected KEY=VALUE"),
        (["info", "n.bin", "-o", "dtype=u2", "-o", "dtype=u4"], 2, "expected dtype once"),
        (["info", "n.bin", "-o", "dtype=u2", "-o", "colour=red"], 2, "data of this kind has no option colour"),
        (["info", "n.bin", "-o", "dtype=float32"], 2, "dtype must be a type of whole numbers"),
        (["info", "n.bin", "-o", "dtype=nonsense"], 2, "nonsense"),
        (["info", "n.bin", "-o", "dtype=u2", "-o", "block_size=many"], 2, "block_size must be a whole number, got 'many'"),
        (["info", "n.bin", "-o", "dtype=u2", "-o", "separator=70000"], 2, "70000"),
        (["info", "n.bin", "-o", "dtype=u2", "-o", "separator=7", "-o", "documents=true"], 2, "got both"),
        (["info", "m.idx", "-o", "dtype=u4"], 3, "expected tokens of uint32, found that they are uint16"),
        (["info", "m.idx", "-o", "block_size=3"], 2, "no option block_size"),
        (["info", "o.npy", "-o", "dtype=u2", "-o", "loss=PLACE/nothing.npy"], 3, "nothing.npy: there is no such file"),
        (["doctor", "-o", "dtype=u2"], 2, "goes with data"),
        (["explain", "train:make", "1", "-o", "dtype=u2"], 2, "train:make opens the data itself"),
        (["verify", "STORE", "-o", "dtype=u2"], 2, "no option dtype"),
        (["gc", "STORE", "-o", "dtype=u2"], 2, "No such option"),
    ],
)
def test_wrong_options_are_one_line(run: Run, place: Path, store: Path, words: list[str], code: int, told: str) -> None:
    given = [str(place / word) if word.endswith((".bin", ".idx", ".npy")) and "=" not in word else word for word in words]
    given = [word.replace("PLACE", str(place)).replace("STORE", str(store)) for word in given]
    result = run(*given)
    assert result.exit_code == code, result.output
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_options_do_not_outlive_their_command(run: Run, place: Path) -> None:
    assert run("info", place / "n.bin", "-o", "dtype=u2").exit_code == 0
    assert run("info", place / "n.bin").exit_code == 3
    assert run("info", place / "n.bin", "-o", "dtype=u2", "-o", "colour=red").exit_code == 2
    assert run("info", place / "m.idx").exit_code == 0
