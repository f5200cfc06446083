"""Runs of every kind: whatever stream, ranks, resumes, cuts and dealing, each loss is that of the record it was computed from."""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.effort import count

import penstock as pen
from penstock.errors import NoMatchError
from penstock.trace import Run, blame_run, certify, certify_run, compare, segment_losses
from penstock.trace.loss_table import is_missing

NUM = 110
LENGTHS = np.random.default_rng(3).integers(1, 12, 2 * NUM).tolist()


def records(first: int = 0, num: int = NUM) -> pen.Source:
    """Record i has the value first + i, and as many bytes as LENGTHS says."""
    return pen.open({"x": np.arange(first, first + num), "text": ["a" * LENGTHS[n] for n in range(num)]})


def documents(first: int = 0, num: int = NUM) -> pen.Source:
    """All tokens of document i are first + i."""
    return pen.open({"tokens": [np.full(LENGTHS[n], first + n, np.int32) for n in range(num)]})


def pack(first: int = 0, num: int = NUM, seed: int = 7) -> pen.Stream:
    return documents(first, num).shuffle(seed=seed).pack(16)


def mixed(make: Callable[..., pen.Stream], **options: Any) -> pen.Stream:
    streams = {"a": make(0, NUM), "b": make(1000, 25)}
    return pen.mix(streams, **{"seed": 5, "weights": {"a": 2, "b": 1}, "stop": "all_exhausted"} | options)


def shuffled(first: int = 0, num: int = NUM) -> pen.Stream:
    return records(first, num).shuffle(seed=7)


def amended() -> pen.Stream:
    mixture = mixed(shuffled, max_epochs={"b": 2.5}, stop="forever")
    return mixture.amend(5, weights={"a": 1, "b": 3, "c": 2}, add={"c": shuffled(2000, 31)}, max_epochs={"c": 1})


STREAMS: dict[str, Callable[[], pen.Stream]] = {
    "shuffle": shuffled,
    "blocks": lambda: records().shuffle(seed=7, block=4, window=3),
    "draws": lambda: records().sample(seed=7),
    "weighted": lambda: records().sample(seed=7, weights=np.arange(1, NUM + 1)),
    "design": lambda: records().design(size=71, seed=3),
    "windows": lambda: records().slide(7, stride=5),
    "buckets": lambda: records().shuffle(seed=7).buckets(24, field="text", window=2),
    "bans": lambda: shuffled().without([1, 2, 3]).without([4, 5], from_step=3),
    "mixture": lambda: mixed(shuffled),
    "mixture without end": lambda: mixed(shuffled, stop="forever"),
    "mixture by step": lambda: mixed(shuffled, weights=[(0, {"a": 2, "b": 1}), (4, {"a": 1, "b": 5})]),
    "batches of one stream": lambda: mixed(shuffled, unit="batch"),
    "caps": lambda: mixed(shuffled, stop="forever", max_epochs={"a": 1.5, "b": 1}),
    "amended": amended,
    "mixture of mixtures": lambda: pen.mix({"m": mixed(shuffled), "c": shuffled(2000, 31)}, weights={"m": 3, "c": 1}, seed=2),
    "pack": pack,
    "pack with bans": lambda: pack().without([1, 2, 3]).without([4, 5], from_step=2),
    "mixture of packs": lambda: mixed(pack),
    "sequences": lambda: documents().shuffle(seed=7).sequences(8, documents=True),
    "mixture of sequences": lambda: mixed(lambda first, num: documents(first, num).shuffle(seed=1).sequences(8, documents=True)),
}
FIRSTS = {"a": 0, "m/a": 0, "b": 1000, "m/b": 1000, "c": 2000, "": 0}
NEED_STEPS = ("mixture by step", "batches of one stream", "amended")
BALANCED = ("shuffle", "blocks", "bans", "mixture", "mixture without end", "caps", "pack", "pack with bans", "mixture of packs")

starts = st.lists(
    st.fixed_dictionaries(
        {
            "back": st.integers(0, 5),
            "world": st.sampled_from([1, 2, 3]),
            "batch_size": st.sampled_from([12, 24]),
            "steps": st.integers(1, 7),
            "micro_batches": st.sampled_from([0, 0, 1, 2]),
            "logged": st.lists(st.integers(0, 7), min_size=4, max_size=4),  # steps after which ranks log no more
            "cuts": st.lists(st.sampled_from([0, 0, 3, 40, 200]), min_size=4, max_size=4),
        }
    ),
    min_size=1,
    max_size=3,
)


def losses_of(batch: Any) -> Any:
    """The loss of a record is its value, that of a document its token."""
    return batch["x"] if "x" in batch else segment_losses(batch["tokens"], batch["segment"])


def options_of(name: str, start: dict[str, Any]) -> dict[str, Any]:
    micro = start["micro_batches"] if name in BALANCED else 0
    if not micro:
        return {}
    by = pen.Balance("tokens", field="text" if "pack" not in name else None, micro_batches=micro)
    return {"balance": pen.Balance("attention", width=1, micro_batches=micro) if "pack" in name else by}


def log_run(path: Path, name: str, tail: str, starts: list[dict[str, Any]]) -> pen.Loader:
    """A run that is started several times, each time a few steps before the last one ended."""
    stream, end, before = STREAMS[name](), 0, None
    for start in starts:
        size = 12 if name in NEED_STEPS else start["batch_size"]
        ahead = pen.Loader(stream, size, tail=tail, threads=0)
        if before is not None:
            ahead.load_state_dict(before.state_at(max(before.schedule.start, end - start["back"])))
        state, first = ahead.state_dict(), ahead.step
        for rank in range(start["world"]):
            shard = pen.Shard(rank, start["world"])
            loader = pen.Loader(stream, size, tail=tail, shard=shard, threads=0, **options_of(name, start))
            loader.load_state_dict(state)
            known = set(os.listdir(path))
            per = "sample" if "x" in stream.schema else "document"
            with pen.LossLog(path, loader, per=per, buffer=100, seconds=1e9) as log:
                for batch, _ in zip(loader.forever(), range(start["steps"]), strict=False):
                    if loader.step - first <= start["logged"][rank]:
                        log(losses_of(batch))
                loader.close()
                assert log.lost == 0
            for made in set(os.listdir(path)) - known:
                os.truncate(path / made, max(0, os.path.getsize(path / made) - start["cuts"][rank]))
        total = ahead.schedule.total
        end = first + start["steps"] if total is None else min(total, first + start["steps"])
        before = ahead
    assert before is not None
    return pen.Loader(stream, 12, tail=tail)


@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=count(2, 300))
@given(starts=starts, tail=st.sampled_from(["keep", "drop", "pad", "wrap"]))
def test_every_loss_is_that_of_its_record(tmp_path_factory, name, starts, tail):
    path = tmp_path_factory.mktemp("run")
    if name == "buckets" and tail == "wrap":
        tail = "keep"
    loader = log_run(path, name, tail, starts)
    try:
        run = Run.open(path, loader)
    except NoMatchError:  # all was cut
        return
    firsts = np.array([FIRSTS[one] for one in run.sources])
    for step in run.table.steps.tolist():
        visits = run.visits(step)
        known = ~is_missing(visits.loss)
        assert (visits.loss == firsts[visits.source] + visits.id)[known].all(), (step, tail)
        assert len(run.table.of(step)) < run.table.stretch(step).world or known.all()
    blame_run(run)
    certificate, begins = certify_run(run), {(one.batch_size, one.state["step"]) for one in run.table.stretches}
    if not certificate.partial and begins in ({(12, 0)}, {(24, 0)}):  # however many ranks there were, and however they were dealt
        whole = pen.Loader(loader.stream, begins.pop()[0], tail=tail)
        assert certificate.chain == certify(whole, run.table.steps.tolist()).chain


@pytest.mark.parametrize("name", BALANCED)
@pytest.mark.parametrize("tail", ["keep", "pad"])
@pytest.mark.sampled(3)
def test_losses_of_balanced_ranks_are_dealt_as_their_samples_were(tmp_path, name, tail):
    start = {"back": 0, "world": 3, "batch_size": 24, "steps": 9, "micro_batches": 2, "logged": [9, 9, 9], "cuts": [0, 0, 0]}
    loader = log_run(tmp_path, name, tail, [start])
    run = Run.open(tmp_path, loader)
    assert run.table.stretches[0].balance is not None
    firsts = np.array([FIRSTS[one] for one in run.sources])
    for step in run.table.steps.tolist():
        visits = run.visits(step)
        assert (visits.loss == firsts[visits.source] + visits.id).all()
        dealt = [run.samples_of(step, rank) for rank in range(3)]
        assert sorted(np.concatenate(dealt).tolist()) == list(range(sum(map(len, dealt))))
    assert any((run.samples_of(0, rank) != np.arange(rank, 24, 3)).any() for rank in range(3))


def assert_all_known(run: Run) -> None:
    """Every loss of the run is known, and is that of its record."""
    firsts = np.array([FIRSTS[one] for one in run.sources])
    for step in run.table.steps.tolist():
        visits = run.visits(step)
        assert (visits.loss == firsts[visits.source] + visits.id).all(), step


def test_rank_that_is_lost_from_balanced_ones_changes_the_certificate_by_its_samples(tmp_path):
    logged = {"back": 0, "world": 3, "batch_size": 24, "steps": 4, "micro_batches": 1, "logged": [4, 2, 4], "cuts": [0, 0, 0]}
    loader = log_run(tmp_path, "shuffle", "wrap", [logged])
    run = Run.open(tmp_path, loader)
    found, whole = certify_run(run), certify(pen.Loader(shuffled(), 24, tail="wrap"), range(4))
    assert [(step, ranks) for step, ranks, _ in found.partial] == [(2, (1,)), (3, (1,))]
    assert compare(found, whole).step == 2
    own = pen.Loader(shuffled(), 24, tail="wrap", shard=pen.Shard(1, 3), balance=pen.Balance("tokens", field="text"), ids="id")
    mine = run.loader_at(3).explain(3)["ids"][run.samples_of(3, 1)]
    assert mine.tolist() == own.batch(3)["id"].tolist()


def test_batches_of_as_many_tokens_are_logged_on_any_number_of_ranks(tmp_path):
    state: Any = None
    for world, steps in ((3, 4), (2, 5)):
        for rank in range(world):
            loader = pen.Loader(pack(), batch_tokens=16, shard=pen.Shard(rank, world), threads=0)
            if state is not None:
                loader.load_state_dict(state)
            with pen.LossLog(tmp_path, loader, per="document") as log:
                for batch, _ in zip(loader.forever(), range(steps), strict=False):
                    log(losses_of(batch))
                loader.close()
        state = loader.state_dict()
    run = Run.open(tmp_path, pen.Loader(pack(), batch_tokens=16))
    assert [int(run.table.worlds[step]) for step in range(9)] == [3] * 4 + [2] * 5
    assert_all_known(run)


@pytest.mark.parametrize("micro_batches", [0, 1, 2])
def test_losses_of_phases_are_those_of_their_records(tmp_path, micro_batches):
    phases = [pen.Phase(batch_size=12, steps=3, seq_len=16), pen.Phase(batch_size=24, steps=3, seq_len=32)]
    balance = {"balance": pen.Balance("tokens", micro_batches=micro_batches)} if micro_batches else {}
    for rank in range(2):
        loader = pen.Loader(pack(), phases=phases, shard=pen.Shard(rank, 2), threads=0, **balance)
        with pen.LossLog(tmp_path, loader, per="document") as log:
            for batch in loader:
                log(losses_of(batch))
    run = Run.open(tmp_path, pen.Loader(pack(), phases=phases))
    assert len(run.table) == 6
    assert_all_known(run)


def pictures() -> pen.Stream:
    """Records with pictures, of which every tenth is damaged."""
    file = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(file, "PNG")
    images = [file.getvalue() if n % 10 != 3 else b"damaged" for n in range(NUM)]
    texts = ["a" * LENGTHS[n] for n in range(NUM)]
    return pen.open({"x": np.arange(NUM), "text": texts, "image": images}).shuffle(seed=7).images("image", 8)


@pytest.mark.parametrize("balance", [None, pen.Balance("tokens", field="text")])
def test_losses_of_records_in_place_of_unreadable_ones_are_theirs(tmp_path, balance):
    """Whatever the loader that is given later does with such records."""
    for rank in range(2):
        loader = pen.Loader(pictures(), 24, on_error="skip", shard=pen.Shard(rank, 2), balance=balance, threads=0)
        with pen.LossLog(tmp_path, loader) as log:
            for batch in loader:
                log(batch["x"])
    run = Run.open(tmp_path, pen.Loader(pictures(), 24))
    assert_all_known(run)
    assert not any((run.visits(step).id % 10 == 3).any() for step in run.table.steps.tolist())


def test_record_that_became_unreadable_keeps_its_loss(tmp_path):
    loader = pen.Loader(shuffled(), 24, threads=0)
    with pen.LossLog(tmp_path, loader) as log:
        for batch in loader:
            log(batch["x"])
    run = Run.open(tmp_path, pen.Loader(shuffled(), 24, on_error="skip"))
    assert run.loader_at(0).work.on_error == "raise"
    assert_all_known(run)
