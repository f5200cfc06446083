"""Figures of a loader: they add up, and advice follows from them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import penstock as pen
from penstock import report
from penstock.report.doctor import ProcessMemory
from penstock.report.speed import Limit, Repeats, Speed, Split, Trainer, advise, split_batches
from penstock.report.trainer import Runner, num_samples
from penstock.schema import Zstd

RECORD = 40


def data() -> Any:
    return pen.open({"x": np.zeros((1000, RECORD - 4), np.uint8), "label": np.arange(1000, dtype=np.int32)})


def make(**options: Any) -> Callable[[], pen.Loader]:
    source = data()
    return lambda: pen.Loader(source.shuffle(seed=3), 100, **options)


@pytest.fixture(scope="module")
def speed() -> Speed:
    return report.measure_loader(make(threads=2), seconds=0.2, work_s=0.001)


def test_samples_and_bytes_add_up(speed: Speed) -> None:
    assert speed.batch_samples == 100
    assert speed.batch_bytes == 100 * RECORD
    assert speed.samples == speed.batches * 100
    assert speed.bytes_per_s.median == pytest.approx(speed.samples_per_s.median * RECORD)
    assert 0 < speed.samples_per_s.least <= speed.samples_per_s.median <= speed.samples_per_s.most
    assert speed.ratio > 0


def test_every_batch_is_in_the_histogram_and_on_the_line(speed: Speed) -> None:
    assert sum(speed.waits.counts) == speed.batches
    assert len(speed.waits.edges) == len(speed.waits.counts) + 1
    assert 0 < speed.waits.p50_s <= speed.waits.p90_s <= speed.waits.p99_s <= speed.waits.most_s
    width = 2 * speed.timeline[0][0]
    assert sum(rate for _, rate in speed.timeline) * width == pytest.approx(speed.samples)


def test_start_resume_trainer_and_memory_are_measured(speed: Speed) -> None:
    assert speed.first_batch_s > 0
    assert speed.resume_s is not None
    assert speed.resume_s > 0
    assert speed.trainer is not None
    assert speed.trainer.work_s == 0.001
    assert 0 <= speed.trainer.waited <= 1
    assert speed.trainer.samples_per_s <= 100 / 0.001
    assert speed.memory.resident_bytes > 0
    assert (speed.threads, speed.network) == (2, None)


def test_progress_reaches_a_hundred() -> None:
    for work_s in (0.0, 0.0005):
        seen: list[tuple[int, int]] = []
        report.measure_loader(make(), seconds=0.05, work_s=work_s, progress=lambda percent, size: seen.append((percent, size)))  # noqa: B023
        assert sum(percent for percent, _ in seen) == 100
        assert sum(size for _, size in seen) > 0


def test_measuring_leaves_nothing_running_and_the_questions_are_refused_early() -> None:
    with pytest.raises(ValueError, match="expected seconds above 0"):
        report.measure_loader(make(), seconds=0)
    empty = pen.open({"x": np.zeros((0, 4))})
    with pytest.raises(ValueError, match=r"gives batches, got none|no batch would ever be returned"):
        report.measure_loader(lambda: pen.Loader(empty, 4), seconds=0.05)


class Plain:
    """A loader of somebody else: batches, and neither figures nor a state."""

    def __iter__(self) -> Iterator[tuple[np.ndarray, list[str]]]:
        return iter([(np.zeros((3, 8), np.int16), ["a", "b", "c"])] * 50)


def test_a_loader_of_another_kind_is_counted_by_its_batches() -> None:
    speed = report.measure_loader(Plain, seconds=0.05)
    assert speed.batch_samples == 3
    assert (speed.split, speed.resume_s) == (None, None)
    assert speed.data == "Plain"
    assert speed.section().tiles


def test_a_loader_that_ends_is_made_anew() -> None:
    made = []

    def short() -> pen.Loader:
        made.append(1)
        return pen.Loader(data().shuffle(seed=1), phases=[pen.Phase(steps=3, batch_size=10)])

    speed = report.measure_loader(short, seconds=0.05)
    assert speed.resume_s is not None
    assert speed.split is not None
    made.clear()
    runner = Runner(short)
    runner.take_first()
    turns = [runner.turn(0.001) for _ in range(4)]  # a loader has three batches
    runner.close()
    assert all(turn.samples == 10 * turn.batches > 0 for turn in turns)
    assert len(made) > 1


@pytest.mark.parametrize(
    ("batch", "wanted"), [({"a": np.zeros((4, 2))}, 4), ([np.zeros(5)], 5), ((np.zeros(6), 1), 6), (np.zeros(()), 1), ({}, 0)]
)
def test_samples_of_a_batch_are_its_first_dimension(batch: Any, wanted: int) -> None:
    assert num_samples(batch) == wanted


def test_the_limit_copies_every_byte_and_takes_no_more_memory_than_the_data() -> None:
    limit = Limit(100, 50, 2, data_bytes=100_000)
    assert not limit.check()
    assert limit.bytes_per_s(0.001) > 0
    assert limit.check()
    assert limit.num_bytes == 100_000


def test_the_parts_of_a_batch_are_measured_without_moving_the_loader() -> None:
    calls: list[int] = []

    def transform(batch: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        return batch

    loader = make(transform=transform)()
    split = split_batches(loader, range(3, 6), most_s=60)
    assert split is not None
    assert (split.batches, len(calls), loader.step) == (3, 3, 0)
    assert min(split.order_s, split.read_s, split.transform_s) > 0
    assert split_batches(loader, range(0), most_s=1) is None


# Advice, from figures that are made up


def quiet(speed: Speed) -> Speed:
    """A loader about which there is nothing to say."""
    calm = Split(1e-6, 1e-3, 0.0, 10)
    return replace(speed, trainer=None, ratio=0.5, split=calm, disk_bytes=0, batch_bytes=1e6, threads=2, cores=2.0, others=0.0)


def advice(speed: Speed, **changes: Any) -> str:
    return " ".join(advise(replace(quiet(speed), **changes), make()()).advice)


def test_where_there_is_nothing_to_improve_only_the_speed_is_told(speed: Speed) -> None:
    rate = Repeats(1000.0, 1000.0, 1000.0)
    told = advise(replace(quiet(speed), samples_per_s=rate), make()()).advice
    assert told == ("A trainer that takes longer than 100 ms per batch does not wait for this loader.",)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"trainer": Trainer(0.01, 1.0, 0.5)}, "busy for 10 ms per batch waits 50 % of the time: the loader needs"),
        ({"trainer": Trainer(10.0, 1.0, 0.5)}, "for a batch, but some come late."),
        ({"trainer": Trainer(0.01, 1.0, 0.01)}, "waits 1 % of the time: this loader is fast enough"),
        ({"ratio": 0.93}, "93 % of what memory can do"),
        ({"split": Split(0.0, 1e-3, 3e-3, 5)}, "The transform takes 75 % of the work"),
        ({"disk_bytes": 10**12}, "A block shuffle (--block, --window) reads runs of records"),
        ({"batch_bytes": 4000.0}, "Batches are small (4 kB)"),
        ({"threads": 0}, "Nothing is read ahead"),
        ({"threads": 1}, "1 thread and the machine 2 cores: try more threads"),
        ({"threads": 16}, "16 threads for 2 cores: fewer would do"),
        ({"others": 0.4}, "Other programs took 40 % of the cores"),
    ],
)
def test_advice_names_what_was_found(speed: Speed, changes: dict[str, Any], wanted: str) -> None:
    assert wanted in advice(speed, **changes)


def test_compressed_fields_are_named(speed: Speed, tmp_path: Any) -> None:
    fields = {"text": pen.Field("i4", (4,), codec=Zstd(3)), "label": pen.Field("i4")}
    with pen.create(tmp_path / "a.pen", fields) as out:
        out.extend({"text": np.zeros((8, 4), np.int32), "label": np.zeros(8, np.int32)})
    with pen.open(tmp_path / "a.pen") as store:
        assert "Compressed fields (text) are decompressed" in " ".join(
            advise(quiet(speed), pen.Loader(store.shuffle(seed=1), 4)).advice
        )


def test_memory_is_the_sum_of_its_parts() -> None:
    assert ProcessMemory(3, 4).resident_bytes == 7
