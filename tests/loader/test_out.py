"""Memory of the user's own, filled in turn."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import penstock as pen
from penstock.formats.array import ArraySource

DATA = ArraySource(
    {"x": np.arange(97), "y": np.random.default_rng(0).random((97, 3), np.float32), "t": [str(i) for i in range(97)]}
)


def buffers(number: int, size: int = 10) -> list[dict[str, np.ndarray]]:
    return [{"x": np.zeros(size, np.int64), "y": np.zeros((size, 3), np.float32)} for _ in range(number)]


@pytest.mark.parametrize("threads", [0, 1, 4])
@pytest.mark.parametrize("number", [1, 2, 5])
def test_batches_lie_in_the_memory_given_and_are_right(threads: int, number: int) -> None:
    plain = list(pen.Loader(DATA.shuffle(seed=3), 10, threads=0))
    out = buffers(number)
    loader = pen.Loader(DATA.shuffle(seed=3), 10, threads=threads, out=out)
    for step, batch in enumerate(loader):
        assert np.shares_memory(batch["x"], out[step % number]["x"])
        assert np.shares_memory(batch["y"], out[step % number]["y"])
        assert np.array_equal(batch["x"], plain[step]["x"])
        assert np.array_equal(batch["y"], plain[step]["y"])
        assert batch["t"].to_list() == plain[step]["t"].to_list()


@pytest.mark.parametrize("threads", [1, 4])
def test_a_batch_is_overwritten_only_when_its_turn_comes_again(threads: int) -> None:
    loader = pen.Loader(DATA.shuffle(seed=3), 10, threads=threads, out=buffers(3), tail="drop")
    held: list[tuple[np.ndarray, np.ndarray]] = []
    for batch in loader.forever():
        held.append((batch["x"], batch["x"].copy()))
        for array, copy in held[-1:]:
            assert np.array_equal(array, copy)
        if len(held) == 40:
            break


def test_memory_that_does_not_fit_is_refused() -> None:
    stream = DATA.shuffle(seed=3)
    for out, message in (
        (buffers(2, 9), "room for 10 samples"),
        ([{"t": np.zeros(10)}], "fixed fields"),
        ([{"no": np.zeros(10)}], "fixed fields"),
        ([{"x": np.zeros(10, np.int32)}], "int64"),
        ([{"y": np.zeros((10, 4), np.float32)}], r"\(10, 3\)"),
    ):
        with pytest.raises(ValueError, match=message):
            pen.Loader(stream, 10, out=out)
    with ThreadPoolExecutor(1) as executor, pytest.raises(ValueError, match="executor"):
        pen.Loader(stream, 10, out=buffers(2), executor=executor)


def test_ranks_and_phases_need_room_for_their_part() -> None:
    loader = pen.Loader(DATA.shuffle(seed=3), 10, out=buffers(2, 5), shard=pen.Shard(1, 2))
    assert [len(batch["x"]) for batch in loader] == [5] * 9 + [3]
    phases = [pen.Phase(2, batch_size=4), pen.Phase(3, batch_size=10)]
    assert [len(batch["x"]) for batch in pen.Loader(DATA.in_order(), phases=phases, out=buffers(2))] == [4, 4, 10, 10, 10]


@pytest.mark.parametrize("threads", [0, 2])
def test_fields_that_a_stream_adds_are_filled_into_the_memory_that_was_given(threads: int) -> None:
    texts = pen.open({"text": ["abc", "de", "fghi", "jk", "l"]}).shuffle(seed=3).sequences(4, documents=True)
    design = DATA.design(size=12, seed=3)
    for stream, names in ((texts, ("segment", "position")), (design, ("weight",))):
        schema = stream.schema
        out = [{name: np.full((4, *schema[name].shape), 99, schema[name].dtype) for name in names} for _ in range(3)]
        expected = list(pen.Loader(stream, 4, threads=0))
        for step, batch in enumerate(pen.Loader(stream, 4, threads=threads, out=out)):
            for name in names:
                assert np.shares_memory(batch[name], out[step % 3][name])
                assert batch[name].tolist() == expected[step][name].tolist()
