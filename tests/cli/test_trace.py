"""blame, replay, certify and diff."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Run
from tests.report.conftest import open_fonts

import penstock as pen
from penstock.errors import StateMismatchError
from penstock.trace import Certificate

BAD = (17, 404)


@pytest.fixture(scope="module", autouse=True)
def fonts_are_open() -> None:
    open_fonts()


TEXTS = [f"{number} {'word ' * (number % 5)}" for number in range(500)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with pen.create(tmp_path / "train.pen", {"x": pen.Field("i4"), "text": pen.Field.text()}) as writer:
        writer.extend({"x": np.arange(500, dtype=np.int32), "text": TEXTS})
    return tmp_path / "train.pen"


def train(path: Path, stream: pen.Stream, data: object = None, *, epochs: int = 3) -> pen.Loader:
    loader = pen.Loader(stream, 10, threads=0)
    noise = np.random.default_rng(1)
    with pen.LossLog(path, loader, data=data) as log:
        for _ in range(epochs):
            for batch in loader:
                log(2 + 0.1 * noise.standard_normal(10) + np.where(np.isin(batch["x"], BAD), 5, 0))
    return loader


@pytest.fixture
def logged(tmp_path: Path, data: Path) -> Path:
    train(tmp_path / "run", pen.open(data).shuffle(seed=7), data)
    return tmp_path / "run"


def test_blame_finds_the_bad_records_of_a_run_that_says_where_its_data_is(run: Run, logged: Path) -> None:
    found = json.loads(run("blame", str(logged), "--trust", "--json").stdout)
    assert sorted(one["id"] for one in found["suspects"]) == list(BAD)
    assert [one["times"] for one in found["suspects"]] == [3, 3]
    assert found["losses"] == 1500
    shown = run("blame", str(logged), "--trust").stdout
    assert "17" in shown
    assert "404" in shown


def test_blame_of_a_step_tells_shares(run: Run, logged: Path, data: Path) -> None:
    loader = pen.Loader(pen.open(data).shuffle(seed=7), 10)
    step = loader.where(17, epochs=range(1))[0]["step"]
    words = ["--of", str(data), "--seed", "7"]
    found = json.loads(run("blame", str(logged), str(step), *words, "--json").stdout)
    assert found["records"][0]["id"] == 17
    assert found["records"][0]["visit"]["share"] > 0.8
    assert found["spike"]["z"] > 6
    assert run("blame", str(logged), "100000", "--trust").exit_code == 2


def test_another_order_is_refused(run: Run, logged: Path, data: Path) -> None:
    result = run("blame", str(logged), "--of", str(data), "--seed", "8")
    assert result.exit_code == 3
    assert "the loader is not that of the run" in result.stderr
    assert "seed=7" in result.stderr


def test_bans_are_printed_and_written_and_read(run: Run, logged: Path, data: Path, tmp_path: Path) -> None:
    line = run("blame", str(logged), "--trust", "--ban", "--from-step", "150").stdout.splitlines()[-1]
    assert line == "stream.without([17, 404], from_step=150)"
    assert run("blame", str(logged), "--trust", "--ban-file", str(tmp_path / "bans.json")).exit_code == 0
    stream = pen.open(data).shuffle(seed=7)
    assert stream.without(tmp_path / "bans.json").plan() == stream.without([17, 404], from_step=150).plan()
    with pytest.raises(StateMismatchError, match="the bans are of other data"):
        pen.open({"x": np.arange(500)}).shuffle(seed=7).without(tmp_path / "bans.json")
    assert run("blame", str(logged), "--trust", "--ban-file", str(tmp_path / "bans.json"), "--from-step", "160").exit_code == 0
    both = stream.without([17, 404], from_step=150).without([17, 404], from_step=160)
    assert stream.without(str(tmp_path / "bans.json")).plan() == both.plan()


def test_records_of_a_mixture_are_named_and_banned(run: Run, tmp_path: Path, data: Path) -> None:
    def plain() -> pen.Stream:
        return pen.mix({"web": pen.open(data).shuffle(seed=1), "code": pen.open(data).shuffle(seed=2)}, seed=3)

    loader = pen.Loader(plain(), 10, threads=0, ids="id")
    with pen.LossLog(tmp_path / "run", loader, data={"web": data, "code": data}) as log:
        for batch in loader:
            is_bad = (batch["id"] == 17) & (batch["id_source"] == 1)
            log(2 + np.arange(10) / 100 + np.where(is_bad, 5, 0))
    found = json.loads(run("blame", str(tmp_path / "run"), "--trust", "--json").stdout)
    assert [(one["source"], one["id"]) for one in found["suspects"]] == [("code", 17)]
    assert found["sources"][0]["source"] == "code"
    assert (
        run("blame", str(tmp_path / "run"), "--trust", "--ban-file", str(tmp_path / "bans.json"), "--from-step", "9").exit_code == 0
    )
    assert plain().without(tmp_path / "bans.json").plan() == plain().without({"code": [17]}, from_step=9).plan()


def test_html_of_a_run_and_a_step(run: Run, logged: Path, data: Path, tmp_path: Path) -> None:
    assert run("blame", str(logged), "--of", str(data), "--html", str(tmp_path / "a.html")).exit_code == 0
    assert run("blame", str(logged), "3", "--trust", "--html", str(tmp_path / "b.html")).exit_code == 0
    assert ">404<" in (tmp_path / "a.html").read_text()
    assert "Step 3" in (tmp_path / "b.html").read_text()


# replay


def test_replay_makes_the_exact_batch(run: Run, logged: Path, data: Path, tmp_path: Path) -> None:
    loader = pen.Loader(pen.open(data).shuffle(seed=7), 10)
    written = ["--npz", str(tmp_path / "a.npz"), "--html", str(tmp_path / "a.html")]
    result = run("replay", str(logged), "61", "--trust", *written, "--json")
    assert result.exit_code == 0, result.stderr
    with np.load(tmp_path / "a.npz") as found:
        assert found["x"].tolist() == loader.batch(61)["x"].tolist()
        ends = found["text.offsets"]
        texts = [bytes(found["text.values"][low:high]).decode() for low, high in pairwise(ends)]
    assert texts == [TEXTS[number] for number in loader.batch(61)["x"].tolist()]
    told = json.loads(result.stdout)
    assert (told["samples"], told["epoch"], [len(one) for one in told["losses"]]) == (10, 1, [1] * 10)
    page = (tmp_path / "a.html").read_text()
    assert all(text.strip() in page for text in texts)


def test_replay_of_data_and_pictures(run: Run, store: Path, tmp_path: Path) -> None:
    assert run("replay", str(store), "1", "--batch-size", "4", "--html", str(tmp_path / "a.html"), "--most", "2").exit_code == 0
    page = (tmp_path / "a.html").read_text()
    assert page.count("<img") >= 2
    assert "and 2 samples more" in page
    assert run("replay", str(store), "1", "--of", str(store)).exit_code == 2
    assert run("replay", str(store), "1", "--trust").exit_code == 2
    assert run("replay", str(store), "x").exit_code == 2


def test_replay_of_packs_shows_documents_and_their_losses(run: Run, data: Path, tmp_path: Path) -> None:
    stream = pen.open(data).shuffle(seed=7).pack(64, field="text")
    loader = pen.Loader(stream, 4, tail="drop", threads=0)
    with pen.LossLog(tmp_path / "run", loader, data=data, per="document") as log:
        for batch in loader:
            log(pen.trace.segment_losses(np.ones(batch["tokens"].shape), batch["segment"]))
    result = run("replay", str(tmp_path / "run"), "2", "--of", str(data), "--html", str(tmp_path / "a.html"), "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)["losses"]
    assert [len(one) for one in told] == [len(one) for one in loader.explain(2)["documents"]]
    document = int(loader.explain(2)["documents"][0][0, 0])
    assert TEXTS[document].strip() in (tmp_path / "a.html").read_text()


# certify and diff


def test_certificates_of_a_run_and_its_plan_are_the_same(run: Run, logged: Path, data: Path, tmp_path: Path) -> None:
    a, b, c = (str(tmp_path / name) for name in ("a.json", "b.json", "c.json"))
    assert run("certify", str(logged), "--trust", "--out", a).exit_code == 0
    order = ["--of", str(data), "--batch-size", "10", "--steps", "150"]
    assert run("certify", *order, "--seed", "7", "--out", b).exit_code == 0
    assert run("certify", *order, "--seed", "8", "--out", c).exit_code == 0
    assert Certificate.load(a).chain == Certificate.load(b).chain
    assert run("diff", a, b).exit_code == 0
    assert run("diff", str(logged), b, "--trust").exit_code == 0
    result = run("diff", a, c, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["is_same"], found["step"]) == (False, 0)
    assert found["reasons"] == [{"kind": "seed", "a": "7", "b": "8"}]
    assert "seed" in run("diff", a, c).stdout


def test_arguments_of_certify_are_checked(run: Run, logged: Path, data: Path) -> None:
    assert run("certify").exit_code == 2
    assert run("certify", "--steps", "5").exit_code == 2
    assert run("certify", str(logged), "--steps", "5").exit_code == 2
    assert run("certify", str(logged), "--seed", "5").exit_code == 2


def test_run_that_does_not_say_where_its_data_is_asks_for_it(run: Run, tmp_path: Path, data: Path) -> None:
    train(tmp_path / "run", pen.open(data).shuffle(seed=7), epochs=1)
    result = run("blame", str(tmp_path / "run"))
    assert result.exit_code == 2
    assert "--of train:make_loader" in result.stderr


# Runs that somebody else wrote


@pytest.fixture
def no_data_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever opens data fails."""

    def refuse(*data: object, **options: object) -> None:
        raise AssertionError(f"opened {data}")

    monkeypatch.setattr("penstock.trace.recipe.open_source", refuse)
    monkeypatch.setattr("penstock.cli.options.open_source", refuse)


COMMANDS = {
    "blame": ["blame", "RUN"],
    "blame of a step": ["blame", "RUN", "3"],
    "replay": ["replay", "RUN", "3"],
    "certify": ["certify", "RUN"],
    "diff": ["diff", "RUN", "RUN"],
    "view": ["view", "--run", "RUN", "--no-browser"],
}


@pytest.mark.usefixtures("no_data_is_opened")
@pytest.mark.parametrize("name", COMMANDS)
def test_what_the_log_of_a_stranger_names_is_not_opened(run: Run, logged: Path, name: str) -> None:
    result = run(*(str(logged) if word == "RUN" else word for word in COMMANDS[name]))
    assert result.exit_code == 3
    assert "a log may come from anyone" in result.stderr
    assert "train.pen" in result.stderr
    assert "--trust" in result.stderr


def test_data_that_is_given_is_put_in_the_order_of_the_log(run: Run, logged: Path, data: Path, tmp_path: Path) -> None:
    (data.parent / "elsewhere").mkdir()
    moved = data.rename(data.parent / "elsewhere" / "moved.pen")
    found = json.loads(run("blame", str(logged), "--of", str(moved), "--json").stdout)
    assert sorted(one["id"] for one in found["suspects"]) == list(BAD)
    assert run("blame", str(logged), "--trust").exit_code == 3  # it is no longer where the log says


def test_data_of_the_streams_of_a_mixture_is_given_by_name(run: Run, tmp_path: Path, data: Path) -> None:
    def plain(seed: int) -> pen.Stream:
        return pen.open(data).shuffle(seed=seed)

    inner = pen.mix({"web": plain(1), "code": plain(2)}, seed=3)
    train(tmp_path / "run", pen.mix({"old": inner, "new": plain(4)}, seed=5), {"old": {"web": data, "code": data}, "new": data})
    words = [word for name in ("old/web", "old/code", "new") for word in ("--of", f"{name}={data}")]
    found = run("certify", str(tmp_path / "run"), *words, "--json")
    trusted = run("certify", str(tmp_path / "run"), "--trust", "--json")
    assert found.stdout == trusted.stdout
    assert found.exit_code == 0
    for wrong in (words[:4], ["--of", str(data)], [*words, "--of", f"more={data}"]):
        result = run("certify", str(tmp_path / "run"), *wrong)
        assert result.exit_code == 2
        assert "mixture" in result.stderr or "'new', 'old'" in result.stderr or "'old', 'new'" in result.stderr


def test_batch_of_a_loader_with_a_transform_is_not_replayed_without_it(run: Run, data: Path, tmp_path: Path) -> None:
    loader = pen.Loader(pen.open(data).shuffle(seed=7), 10, transform=dict, threads=0)
    with pen.LossLog(tmp_path / "run", loader, data=data) as log:
        for batch in loader:
            log(batch["x"])
    assert run("blame", str(tmp_path / "run"), "--trust").exit_code == 0
    result = run("replay", str(tmp_path / "run"), "3", "--trust")
    assert result.exit_code == 2
    assert "had a transform" in result.stderr
