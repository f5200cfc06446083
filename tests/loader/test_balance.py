"""Loader(balance=), batch_tokens= and padding_ratio: next to an unbalanced run, over ranks, engines and resumes."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest
from tests.effort import every

import penstock as pen
from penstock.errors import StateMismatchError
from penstock.loader.make_batch import make_elsewhere, pack
from penstock.order import Sequential
from penstock.remote.url import url_path
from penstock.stream import RecordStream

WORLDS = (1, 2, 4, 8, 32)


def documents(count=400, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 99, size=int(n)).astype("i4") for n in rng.lognormal(3, 1, count)]


@pytest.fixture(scope="module")
def source():
    rng = np.random.default_rng(2)
    return pen.open({"ids": documents(), "x": np.arange(400), "cost": rng.random(400)})


def loaders(stream, size, world, **options):
    return [pen.Loader(stream, size, shard=pen.Shard(rank, world), ids="id", **options) for rank in range(world)]


@pytest.mark.parametrize("by", ["attention", "tokens", "cost", "ids"])
def test_the_union_over_ranks_is_the_batch_for_every_world(source, by):
    plain = [batch["id"].tolist() for batch in pen.Loader(source.shuffle(seed=7), 64, threads=0, ids="id")]
    for world in WORLDS:
        runs = loaders(
            source.shuffle(seed=7),
            64,
            world,
            threads=0,
            balance=pen.Balance(by, field="ids" if by in ("attention", "tokens") else None),
        )
        for step, batches in enumerate(zip(*runs, strict=True)):
            assert sorted(one for batch in batches for one in batch["id"].tolist()) == sorted(plain[step])
            assert [len(batch["id"]) for batch in batches] == [len(plain[step][rank::world]) for rank in range(world)]
        assert step == len(plain) - 1


def test_packs_over_ranks_are_the_batch_and_cost_about_the_same(source):
    stream = source.shuffle(seed=7).pack(256, field="ids", window=64)
    plain = pen.Loader(stream, 32, threads=0)
    for world in (2, 4, 8):
        runs = loaders(stream, 32, world, threads=0, balance=pen.Balance("attention", width=1))
        worst = []
        for expected, *batches in zip(plain, *runs, strict=True):
            rows = [row for batch in batches for row in batch["tokens"].tolist()]
            assert sorted(rows) == sorted(expected["tokens"].tolist())
        plain.seek(0)
        told = runs[0].explain(0)
        loads = [told["cost"][told["rank"] == rank].sum() for rank in range(world)]
        spread = [told["cost"][rank::world].sum() for rank in range(world)]
        worst.append((max(loads) / np.mean(loads), max(spread) / np.mean(spread)))
        assert all(one <= other for one, other in worst)


@pytest.mark.parametrize("threads", [0, 1, 2, 4])
def test_every_engine_gives_the_same_samples_in_the_same_order(tmp_path, threads):
    rng = np.random.default_rng(3)
    with pen.create(tmp_path / "store", {"x": pen.Field("i8"), "cost": pen.Field("f4")}) as writer:
        writer.extend({"x": np.arange(300), "cost": rng.random(300).astype("f4")})
    data = pen.open(tmp_path / "store")
    for name, expected in (
        ("in_order", data.in_order()),
        ("shuffle", data.shuffle(seed=3)),
        ("blocks", data.shuffle(seed=3, block=16, window=2)),
    ):
        for rank in every(2, [0, 1], first=threads):
            shard = pen.Shard(rank, 2)
            slow = [b["x"].tolist() for b in pen.Loader(expected, 20, shard=shard, balance="cost", threads=0)]
            loader = pen.Loader(expected, 20, shard=shard, balance="cost", threads=threads)
            assert loader.engine == ("native" if threads else "caller"), name
            assert [b["x"].tolist() for b in loader] == slow
    data.close()


def test_executors_and_memory_of_the_users_own_get_the_same(source):
    stream = source.pick("x", "cost").shuffle(seed=5)
    shard = pen.Shard(1, 2)
    expected = [b["x"].tolist() for b in pen.Loader(stream, 16, shard=shard, balance="cost", threads=0)]
    with ThreadPoolExecutor(2) as executor:
        assert [b["x"].tolist() for b in pen.Loader(stream, 16, shard=shard, balance="cost", executor=executor)] == expected
    out = [{"x": np.empty(8, "i8")} for _ in range(3)]
    assert [b["x"].tolist() for b in pen.Loader(stream, 16, shard=shard, balance="cost", out=out)] == expected
    loader = pen.Loader(stream, 16, shard=shard, balance="cost")
    work = pack(loader.work)
    assert [make_elsewhere(work, loader.schedule.place(step))["x"].tolist() for step in range(len(expected))] == expected
    again = pickle.loads(pickle.dumps(loader))
    assert [b["x"].tolist() for b in again] == expected


def test_a_state_goes_on_with_other_ranks_and_with_or_without_balance(source):
    stream = source.shuffle(seed=9)
    whole = [sorted(b["id"].tolist()) for b in pen.Loader(stream, 16, threads=0, ids="id")]
    first = loaders(stream, 16, 4, threads=0, balance=pen.Balance("tokens", field="ids", micro_batches=2))
    for loader in first:
        for _, _ in zip(range(3), loader, strict=False):
            pass
    states = [loader.state_dict() for loader in first]
    assert all(state == states[0] for state in states)
    for options in ({"balance": "cost"}, {"balance": pen.Balance("attention", field="ids")}, {}):
        for world in (1, 2, 8):
            runs = loaders(stream, 16, world, threads=0, **options)
            for loader in runs:
                loader.load_state_dict(states[0])
            for step, batches in enumerate(zip(*runs, strict=True), 3):
                assert sorted(one for batch in batches for one in batch["id"].tolist()) == whole[step]


def test_micro_batches_are_balanced_over_ranks(source):
    runs = loaders(source.shuffle(seed=7), 64, 4, threads=0, balance=pen.Balance("ids", micro_batches=4))
    lengths = np.array([len(one) for one in documents()])
    told = runs[0].explain(2)
    batches = [loader.batch(2)["id"] for loader in runs]
    for micro in range(4):
        own = [batch[micro * 4 : (micro + 1) * 4] for batch in batches]
        for rank, ids in enumerate(own):
            here = (told["rank"] == rank) & (told["slot"] == micro)
            assert sorted(told["ids"][here].tolist()) == sorted(ids.tolist())
            assert told["cost"][here].sum() == lengths[ids].sum()


def test_a_changed_batch_does_not_change_the_next_reading_of_it(source):
    loader = pen.Loader(source.shuffle(seed=7), 16, threads=0, ids="id", balance="cost")
    expected = loader.batch(1)["id"].copy()
    loader.batch(1)["id"][:] = -1
    assert loader.batch(1)["id"].tolist() == expected.tolist()


def test_what_cannot_be_balanced_is_refused(source):
    stream = source.shuffle(seed=7)
    for options, error, words in (
        ({"balance": "attention"}, None, ""),
        ({"balance": 7}, TypeError, "got int"),
        ({"balance": "nothing"}, KeyError, "balance: expected"),
        ({"balance": pen.Balance("tokens", field="x")}, ValueError, "one length"),
        ({"balance": pen.Balance("tokens", field="y")}, KeyError, "unknown field"),
        ({"balance": pen.Balance("cost", micro_batches=3)}, ValueError, "use a multiple of 3"),
    ):
        if error is None:
            pen.Loader(stream, 16, **options)
            continue
        with pytest.raises(error, match=words):
            pen.Loader(stream, 16, **options)
    with pytest.raises(ValueError, match="lanes"):
        pen.Loader(source.shuffle(seed=7, block=4, lanes=2), 16, balance="cost")
    with pytest.raises(ValueError, match="nothing to balance"):
        pen.Loader(source.shuffle(seed=7).sequences(8, field="ids"), 16, balance="tokens")
    with pytest.raises(ValueError, match="packed sequences"):
        pen.Loader(source.shuffle(seed=7).pack(8, field="ids"), 16, balance="cost")
    with pytest.raises(ValueError, match="several fields vary"):
        pen.Loader(pen.open({"a": ["x", "yy"], "b": ["z", ""]}).in_order(), 2, balance="tokens")
    with pytest.raises(ValueError, match="record 1 has -1"):
        pen.Loader(pen.open({"c": np.array([3, -1])}).in_order(), 2, balance="c")
    with pytest.raises(ValueError, match="record 0 has nan"):
        pen.Loader(pen.open({"c": np.array([np.nan, 1.0])}).in_order(), 2, balance="c")
    with pytest.raises(TypeError, match="one real number"):
        pen.Loader(pen.open({"c": np.zeros((2, 2))}).in_order(), 2, balance="c")


# batch_tokens


def test_batch_tokens_gives_each_rank_one_row_with_exact_cu_seqlens(source):
    stream = source.shuffle(seed=7).pack(128, field="ids", fields=("tokens", "position", "cu_seqlens", "max_seqlen"), window=64)
    plain = pen.Loader(stream, 2, threads=0)
    runs = [pen.Loader(stream, batch_tokens=128, shard=pen.Shard(rank, 2), threads=threads) for rank, threads in ((0, 0), (1, 2))]
    for expected, *batches in zip(plain, *runs, strict=True):
        for rank, batch in enumerate(batches):
            if len(batch["tokens"]) == 0:  # the last step of an odd number
                assert batch["cu_seqlens"].tolist() == [0]
                continue
            assert batch["tokens"].tolist() == expected["tokens"][rank : rank + 1].tolist()
            starts = np.flatnonzero(batch["position"][0] == 0).tolist()
            padding = [] if batch["position"][0][-1] or len(starts) == 0 else starts
            bounds = batch["cu_seqlens"].tolist()
            assert bounds[0] == 0
            assert bounds[-1] == 128
            assert sorted(set(bounds)) == bounds
            assert set(bounds[1:-1]) <= set(starts) | set(padding)
            assert batch["max_seqlen"].shape == ()
            assert batch["max_seqlen"] == max(np.diff(bounds))


def test_batch_tokens_is_for_packs_of_that_length(source):
    packs = source.shuffle(seed=7).pack(64, field="ids")
    for stream, options in (
        (packs, {"batch_tokens": 128}),
        (source.shuffle(seed=7), {"batch_tokens": 64}),
        (packs, {"batch_tokens": 64, "batch_size": 4}),
        (packs, {"batch_tokens": 64, "balance": "tokens"}),
        (packs, {"batch_tokens": 0}),
    ):
        with pytest.raises(ValueError, match="batch_tokens"):
            pen.Loader(stream, **options)


# Buckets and padding


def test_buckets_give_every_record_once_and_less_padding(source):
    lengths = np.array([len(one) for one in documents()])
    plain, stream = source.shuffle(seed=7), source.shuffle(seed=7).buckets(16, field="ids", window=25)
    loader = pen.Loader(stream, 16, threads=2, ids="id")
    for epoch in range(2):
        ids = [batch["id"] for batch in loader]
        assert sorted(np.concatenate(ids).tolist()) == list(range(400)), epoch
        used = sum(lengths[one].sum() for one in ids)
        padded = sum(lengths[one].max() * one.size for one in ids)
    loader.begin_epoch(1)
    assert loader.padding_ratio("ids") == pytest.approx(1 - used / padded)
    assert loader.padding_ratio("ids") < 0.35 < 0.6 < pen.Loader(plain, 16).padding_ratio("ids")
    assert loader.padding_ratio("ids", multiple_of=64) > loader.padding_ratio("ids")
    assert loader.padding_ratio("ids", steps=range(3)) < 1


def test_padding_of_packs_is_what_no_document_fills(source):
    packs = source.shuffle(seed=7).pack(128, field="ids", fields=("tokens", "segment"), window=64)
    loader = pen.Loader(packs, 8, threads=0)
    share = np.mean(np.concatenate([batch["segment"].ravel() for batch in loader]) == -1)
    loader.begin_epoch(0)
    assert loader.padding_ratio() == pytest.approx(share)


def test_buckets_resume_exactly_and_say_where_records_are(source):
    stream = source.shuffle(seed=7).buckets(16, field="ids", window=5)
    report = pen.verify_resume(lambda: pen.Loader(stream, 16, threads=0, ids="id"), points=[0, 3, 25, 26])
    assert report.batches > 50
    loader = pen.Loader(stream, 16, threads=0, ids="id")
    found = loader.where(123)
    assert 123 in loader.batch(found[0]["step"])["id"]
    other = pen.Loader(source.shuffle(seed=7).buckets(16, field="ids", window=6), 16)
    with pytest.raises(StateMismatchError, match="order"):
        other.load_state_dict(loader.state_dict())
    assert pickle.loads(pickle.dumps(stream)).locate(0, range(50)).ids.tolist() == stream.locate(0, range(50)).ids.tolist()


def test_what_has_no_buckets_is_refused(source):
    stream = source.shuffle(seed=7).buckets(16, field="ids")
    with pytest.raises(ValueError, match="buckets are for batches of 16"):
        pen.Loader(stream, 12)
    pen.Loader(stream, 8)
    pen.Loader(stream, 16, tail="wrap")  # 400 records are whole batches
    with pytest.raises(ValueError, match="wrap"):
        pen.Loader(source.select(slice(0, 395)).shuffle(seed=7).buckets(16, field="ids"), 16, tail="wrap")
    with pytest.raises(ValueError, match="phases"):
        pen.Loader(stream, phases=[pen.Phase(batch_size=16, steps=2, seq_len=1)])
    for make in (
        lambda: source.sample(seed=1).buckets(4, field="ids"),
        lambda: stream.buckets(16, field="ids"),
        lambda: stream.pack(32, field="ids"),
        lambda: source.slide(window=2).buckets(4, field="ids"),
    ):
        with pytest.raises(TypeError, match="order"):
            make()
    with pytest.raises(ValueError, match="lanes"):
        source.shuffle(seed=7, block=4, lanes=2).buckets(16, field="ids")
    with pytest.raises(ValueError, match="one length"):
        source.shuffle(seed=7).buckets(16, field="x")
    with pytest.raises(ValueError, match="all 400 records"):
        RecordStream(source, Sequential(10)).buckets(2, field="ids")


@pytest.mark.parametrize("threads", [0, 2])
def test_data_at_a_url_is_dealt_as_on_a_disk(tmp_path, threads):
    rng = np.random.default_rng(4)
    fields = {"x": pen.Field("i8"), "ids": pen.Field.ragged("i4"), "cost": pen.Field("f4"), "bytes": pen.Field("u1", (500,))}
    with pen.create(tmp_path / "store", fields, chunk_bytes=100_000) as writer:
        columns = {"ids": documents(600), "cost": rng.random(600).astype("f4"), "bytes": np.zeros((600, 500), "u1")}
        writer.extend({"x": np.arange(600), **columns})
    root = url_path("memory://balance/store")
    for file in (path for path in (tmp_path / "store").rglob("*") if path.is_file()):
        place = root / str(file.relative_to(tmp_path / "store"))
        place.objects.put(place.key, file.read_bytes())
    with pen.open(tmp_path / "store") as near, pen.open(str(root), window_bytes="256KiB") as far:
        makers = (
            lambda data: data.shuffle(seed=1, block=20, window=2),
            lambda data: data.shuffle(seed=1, block=20, window=2).buckets(16, field="ids", window=3),
            lambda data: data.in_order().buckets(16, field="ids", window=3),
        )
        balances = ("cost", pen.Balance("attention", field="ids"))
        for make, balance in every(2, list(product(makers, balances)), threads // 2):
            options = {"shard": pen.Shard(1, 4), "balance": balance}
            expected = [batch["x"].tolist() for batch in pen.Loader(make(near), 16, threads=0, **options)]
            loader = pickle.loads(pickle.dumps(pen.Loader(make(far), 16, threads=threads, **options)))
            assert [batch["x"].tolist() for batch in loader] == expected
