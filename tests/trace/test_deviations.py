"""Deviations that were planted on purpose, and what the comparison of two certificates says about each."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from tests.effort import every

import penstock as pen
from penstock.errors import CorruptError, FormatError
from penstock.order import Phase
from penstock.trace import Certificate, Run, certify, certify_run, compare

NUM_RECORDS, STEPS = 200, 30
TEXTS = [f"text {number} " * (1 + number % 7) for number in range(NUM_RECORDS)]


def records(change: int | None = None, count: int = NUM_RECORDS) -> pen.Source:
    x, text = np.arange(count) * 3, TEXTS[:count] + ["more"] * (count - len(TEXTS))
    if change is not None:
        text = [*text[:change], "another text", *text[change + 1 :]]
    return pen.open({"x": x, "text": text})


def loader(stream: pen.Stream | None = None, batch_size: int = 8, **options) -> pen.Loader:
    return pen.Loader(
        records().shuffle(seed=7) if stream is None else stream, batch_size, **{"tail": "wrap", "threads": 0} | options
    )


def mixed(seed: int = 3, web: int = 1, weights: tuple[float, float] = (0.5, 0.5), **options) -> pen.Stream:
    streams = {"web": records().shuffle(seed=web), "code": records().shuffle(seed=2)}
    given = {"web": weights[0], "code": weights[1]}
    return pen.mix(streams, weights=given, seed=seed, **{"stop": "all_exhausted"} | options)


def packed(length: int = 64, seed: int = 7, **options) -> pen.Stream:
    return records().shuffle(seed=seed).pack(length, field="text", **options)


def plan(make: Callable[[], pen.Loader], steps=range(STEPS), **options) -> Certificate:
    return certify(make(), steps, **options)


def logged(path, starts, lost: dict[int, int] | None = None, skip: range = range(0)) -> Certificate:
    """A run that is started several times: (first step, end, world, batch size). ``lost`` ranks do not log from a step on."""
    state, before = None, loader()
    for first, end, world, batch_size in starts:
        if state is not None:
            state = before.state_at(first)
        for rank in range(world):
            one = loader(batch_size=batch_size, shard=pen.Shard(rank, world))
            if state is not None:
                one.load_state_dict(state)
            with pen.LossLog(path, one) as log:
                for step in range(first, end):
                    if step in skip or step >= (lost or {}).get(rank, end):
                        continue
                    one.seek(step + 1)
                    log(np.zeros(one.schedule.place(step).num_samples))
        before = loader(batch_size=batch_size)
        if state is not None:
            before.load_state_dict(state)
    return certify_run(Run.open(path, loader()))


BASE = plan(loader)

DEVIATIONS = {  # name: (A, B, the first step that differs, the kind of thing that is named, what is said of B)
    "seed": (loader, lambda: loader(records().shuffle(seed=8)), 0, "seed", "8"),
    "no shuffle": (loader, lambda: loader(records().in_order()), 0, "order", "Sequential"),
    "shuffle in blocks": (loader, lambda: loader(records().shuffle(seed=7, block=10)), 0, "order", "BlockShuffle"),
    "size of blocks": (
        lambda: loader(records().shuffle(seed=7, block=10)),
        lambda: loader(records().shuffle(seed=7, block=20)),
        0,
        "block",
        "20",
    ),
    "window": (
        lambda: loader(records().shuffle(seed=7, block=10, window=2)),
        lambda: loader(records().shuffle(seed=7, block=10, window=4)),
        0,
        "window",
        "4",
    ),
    "draws with replacement": (loader, lambda: loader(records().sample(seed=7)), 0, "order", "Random"),
    "batch size": (loader, lambda: loader(batch_size=16), 0, "batch size", "16"),
    "tail": (lambda: loader(batch_size=16, tail="drop"), lambda: loader(batch_size=16, tail="keep"), 12, "tail", "keep"),
    "ban": (loader, lambda: loader(records().shuffle(seed=7).without([5, 6], from_step=11)), None, "bans", "from step 11 on"),
    "another ban": (
        lambda: loader(records().shuffle(seed=7).without([5])),
        lambda: loader(records().shuffle(seed=7).without([6])),
        None,
        "bans",
        "1 records from step 0 on",
    ),
    "weights of a mixture": (
        lambda: loader(mixed()),
        lambda: loader(mixed(weights=(0.75, 0.25))),
        None,
        "mixture weights",
        "0.25",
    ),
    "seed of a mixture": (lambda: loader(mixed()), lambda: loader(mixed(seed=4)), 0, "mixture seed", "4"),
    "seed of a stream in a mixture": (lambda: loader(mixed()), lambda: loader(mixed(web=9)), 0, "seed of web", "9"),
    "end of a mixture": (
        lambda: loader(mixed(weights=(0.9, 0.1))),
        lambda: loader(mixed(weights=(0.9, 0.1), stop="first_exhausted")),
        None,
        "mixture stop",
        "first_exhausted",
    ),
    "length of packs": (lambda: loader(packed()), lambda: loader(packed(128)), 0, "pack length", "128"),
    "split of packs": (
        lambda: loader(packed(split="fit")),
        lambda: loader(packed(split="always")),
        None,
        "pack split",
        "always",
    ),
    "seed of packs": (lambda: loader(packed()), lambda: loader(packed(seed=8)), 0, "seed", "8"),
    "phases": (
        lambda: pen.Loader(records().shuffle(seed=7), phases=[Phase(batch_size=8, steps=30)]),
        lambda: pen.Loader(records().shuffle(seed=7), phases=[Phase(batch_size=8, steps=20), Phase(batch_size=4, steps=10)]),
        20,
        "phases",
        "batch_size=4",
    ),
}


@pytest.mark.parametrize("name", every(2, list(DEVIATIONS)))
def test_planted_deviation_of_the_plan_is_named(name):
    make_a, make_b, step, kind, said = DEVIATIONS[name]
    a, b = plan(make_a), plan(make_b)
    assert compare(a, plan(make_a)).is_same
    found = compare(a, b)
    assert not found.is_same
    expected = [s for s in range(STEPS) if not _same_step(make_a(), make_b(), s)][0]  # noqa: RUF015
    assert found.step == expected
    assert step in (None, expected)
    reason = next(reason for reason in found.reasons if reason.kind == kind)
    assert said in reason.b
    assert said not in reason.a or reason.a != reason.b


def _same_step(a: pen.Loader, b: pen.Loader, step: int) -> bool:
    """Whether two loaders give the same samples, by what they explain."""
    return repr(a.explain(step)) == repr(b.explain(step))


def test_order_version_is_named():
    from penstock.formats.open import open_source

    source = open_source({"text": TEXTS})
    new = loader(source.shuffle(seed=7).sequences(16))
    old = loader(source.shuffle(seed=7).sequences(16))
    _, told = new.stream.continued(0)
    state = old.state_dict() | {"order_version": 1, "plan": {key: str(value) for key, value in told.items()}}
    old.load_state_dict(state)
    assert old.stream.order_version == 1
    found = compare(certify(new, range(STEPS)), certify(old, range(STEPS)))
    assert found.reasons[0].kind == "order version"
    assert (found.reasons[0].a, found.reasons[0].b) == ("2", "1")


# Data


@pytest.mark.parametrize("make", [lambda data: data.shuffle(seed=7), lambda data: data.shuffle(seed=7).pack(64, field="text")])
def test_changed_record_is_named_with_the_step_that_first_had_it(make):
    a = plan(lambda: loader(make(records())), records=True)
    b = plan(lambda: loader(make(records(change=77))), records=True)
    found = compare(a, b)
    assert ("record", "77", "changed") in [(one.kind, one.a, one.b) for one in found.reasons]
    if make(records()).has_sequences:  # lengths changed with the text, and packs with them
        return
    seen = [s for s in range(STEPS) if 77 in loader().explain(s)["ids"]]
    assert found.step == seen[0]


def test_changed_record_of_a_mixture_is_named():
    streams = [{"web": records(), "code": records(change)} for change in (None, 5)]
    made = [pen.mix({n: s.shuffle(seed=1) for n, s in one.items()}, seed=1) for one in streams]
    a, b = (plan(lambda one=one: loader(one), records=True) for one in made)
    found = compare(a, b)
    assert [(one.kind, one.a, one.b) for one in found.reasons] == [("record of code", "5", "changed")]


def test_changed_data_is_told_without_digests_of_records():
    found = compare(BASE, plan(lambda: loader(records(change=77).shuffle(seed=7))))
    assert found.step is None
    assert [one.kind for one in found.reasons] == ["data"]
    assert "digests of records" in found.reasons[0].b


def test_record_added_at_the_end_is_told():
    a, b = plan(loader, records=True), plan(lambda: loader(records(count=201).shuffle(seed=7)), records=True)
    found = compare(a, b)
    assert ("records", "200", "201") in [(one.kind, one.a, one.b) for one in found.reasons]


def test_changed_type_of_a_field_is_told():
    data = pen.open({"x": (np.arange(NUM_RECORDS) * 3).astype(np.float32), "text": TEXTS})
    found = compare(BASE, plan(lambda: loader(data.shuffle(seed=7))))
    assert [one.kind for one in found.reasons] == ["data"]


# Runs


def test_runs_on_any_number_of_ranks_have_one_chain(tmp_path):
    alone = logged(tmp_path / "a", [(0, 30, 1, 8)])
    resumed = logged(tmp_path / "b", [(0, 12, 4, 8), (9, 20, 2, 8), (20, 30, 1, 8)])
    assert alone.chain == resumed.chain == BASE.chain
    assert compare(alone, resumed).is_same


def test_skipped_step_is_named(tmp_path):
    found = compare(BASE, logged(tmp_path, [(0, 30, 2, 8)], skip=range(13, 15)))
    assert (found.step, found.reasons[0].kind) == (13, "step skipped")
    assert found.reasons[0].b == "skipped, the next step is 15"


def test_lost_rank_is_named(tmp_path):
    found = compare(BASE, logged(tmp_path, [(0, 30, 4, 8)], lost={2: 17}))
    assert (found.step, found.reasons[0].kind) == (17, "rank lost")
    assert found.reasons[0].b == "nothing of rank 2 of 4"


def test_end_and_begin_of_a_run_are_named(tmp_path):
    found = compare(BASE, logged(tmp_path / "a", [(0, 21, 1, 8)]))
    assert (found.step, found.reasons[0].kind) == (21, "end of the run")
    found = compare(BASE, logged(tmp_path / "b", [(4, 30, 1, 8)]))
    assert (found.step, found.reasons[0].kind) == (0, "begin of the run")


def test_batch_size_changed_at_a_resume_is_named_with_its_step(tmp_path):
    found = compare(BASE, logged(tmp_path, [(0, 12, 1, 8), (12, 30, 1, 16)]))
    assert (found.step, found.reasons[0].kind) == (12, "batch size")
    assert (found.reasons[0].a, found.reasons[0].b) == ("8", "16")


# The file


def test_certificate_comes_back_from_its_file(tmp_path):
    made = plan(loader, [0, 1, 2, 7, 9, 10], records=True)
    made.save(tmp_path / "a.json")
    again = Certificate.load(tmp_path / "a.json")
    assert again.as_json() == made.as_json()
    assert compare(made, again).is_same


def test_chain_of_a_known_run_never_changes():
    data = pen.open({"x": np.arange(100)})
    made = certify(pen.Loader(data.shuffle(seed=7), 8, tail="wrap"), range(10))
    assert made.chain == "a25e572076eec5b930fa7a417b506be9ec594058d30c5db1b8c1d2dc40c570f2"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"\x00\x01", FormatError),
        (b"{}", FormatError),
        (b'{"kind": "penstock certificate", "version": 1}', CorruptError),
        (b'{"kind": "penstock certificate", "version": 2}', FormatError),
    ],
)
def test_other_files_are_refused(tmp_path, text, error):
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(error):
        Certificate.load(tmp_path / "a.json")


def test_damaged_certificates_are_refused_or_differ(tmp_path):
    made = plan(loader, range(5)).as_json()
    for key in made:
        for value in (None, 7, "x", [], {}, [[5, 3]]):
            (tmp_path / "a.json").write_text(json.dumps(made | {key: value}))
            try:
                found = Certificate.load(tmp_path / "a.json")
            except (CorruptError, FormatError):
                continue
            if found.as_json() != made:
                found.as_json()
