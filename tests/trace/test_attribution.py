"""Losses are those of the records they were computed from: on other worlds, behind resumes, bans, amendments and padding."""

from pathlib import Path

import numpy as np
import pytest

import penstock as pen
from penstock.trace import LossTable, Run, certify, certify_run, compare, segment_losses
from penstock.trace.loss_log import BLOCK_MAGIC, Stretch, head_bytes

NUM_RECORDS = 97


def records(low: int = 0, num: int = NUM_RECORDS) -> pen.Source:
    return pen.open({"x": np.arange(low, low + num)})


def log_steps(log: pen.LossLog, loader: pen.Loader, steps: int) -> None:
    """Train on some batches: the loss of a record is its value."""
    batches = loader.forever()
    for _ in range(steps):
        log(next(batches)["x"])
    batches.close()


def losses_by_record(run: Run, step: int) -> dict[tuple[int, int], float]:
    visits = run.visits(step)
    return dict(zip(zip(visits.source.tolist(), visits.id.tolist(), strict=True), visits.loss.tolist(), strict=True))


def assert_losses_are_of_their_records(run: Run, firsts: tuple[int, ...] = (0,)) -> None:
    for step in run.table.steps.tolist():
        for (source, record), loss in losses_by_record(run, step).items():
            assert loss == firsts[source] + record, step


def test_losses_in_memory_belong_to_the_schedule_they_were_computed_in(tmp_path: Path) -> None:
    stream = records().shuffle(seed=7)
    odd = pen.Loader(stream, 6, threads=0)
    odd.seek(3)
    loader = pen.Loader(stream, 8, threads=0)
    loader.load_state_dict(odd.state_dict())  # its batches begin at step 3, at position 18
    with pen.LossLog(tmp_path, loader, seconds=1e9) as log:
        log_steps(log, loader, 4)
        loader.load_state_dict(pen.Loader(stream, 8, threads=0).state_dict())  # and begin at step 0 from here on
        log_steps(log, loader, 2)
    assert log.lost == 0
    run = Run.open(tmp_path, pen.Loader(stream, 8))
    assert set(run.table.steps.tolist()) >= {0, 1}
    assert_losses_are_of_their_records(run)


def test_losses_in_memory_are_written_after_the_loader_went_on_elsewhere(tmp_path: Path) -> None:
    stream = records().shuffle(seed=7)
    loader = pen.Loader(stream, 8, threads=0)
    odd = pen.Loader(stream, 6, threads=0)
    odd.seek(11)
    with pen.LossLog(tmp_path, loader, seconds=1e9) as log:
        log_steps(log, loader, 4)
        loader.load_state_dict(odd.state_dict())
        log_steps(log, loader, 1)
    assert log.lost == 0
    run = Run.open(tmp_path, pen.Loader(stream, 8))
    assert run.table.steps.tolist() == [0, 1, 2, 3, 11]
    assert_losses_are_of_their_records(run)


TEXTS = ["a" * 3, "b" * 9, "c" * 5, "d" * 14, "e", "f" * 7, "g" * 2] * 3


@pytest.mark.parametrize("world", [1, 2])
def test_documents_of_samples_that_only_fill_a_batch_up_are_left_out(tmp_path: Path, world: int) -> None:
    stream = pen.open({"text": TEXTS}).shuffle(seed=1).pack(16)
    for rank in range(world):
        loader = pen.Loader(stream, 4, tail="pad", shard=pen.Shard(rank, world), threads=0)
        with pen.LossLog(tmp_path, loader, per="document") as log:
            for batch in loader:
                log(segment_losses(batch["tokens"], batch["segment"]))
    run = Run.open(tmp_path, pen.Loader(stream, 4, tail="pad"))
    assert run.loader_at(len(run.table) - 1).schedule.place(len(run.table) - 1).padding > 0
    for step in run.table.steps.tolist():
        visits = run.visits(step)
        assert visits.loss.tolist() == [ord(TEXTS[record][0]) for record in visits.id.tolist()]


def test_run_is_found_again_behind_new_bans(tmp_path: Path) -> None:
    """Blame, ban, go on, blame again: steps before the ban are of the stream without it."""
    stream = records().shuffle(seed=7)
    loader = pen.Loader(stream, 8, threads=0)
    with pen.LossLog(tmp_path, loader) as log:
        log_steps(log, loader, 6)
    banned = stream.without([5, 6, 7], from_step=4)
    after = pen.Loader(banned, 8, threads=0)
    after.load_state_dict(loader.state_at(4), strict=False)
    with pen.LossLog(tmp_path, after) as log:
        log_steps(log, after, 5)
    assert_losses_are_of_their_records(Run.open(tmp_path, pen.Loader(banned, 8)))


def test_mixture_of_packs_is_found_again_behind_two_new_bans(tmp_path: Path) -> None:
    packs = pen.open({"text": TEXTS}).shuffle(seed=1).pack(16), pen.open({"text": TEXTS}).shuffle(seed=2).pack(16)
    stream = pen.mix({"a": packs[0], "b": packs[1]}, weights={"a": 1, "b": 1}, seed=3)
    versions = [stream, stream.without({"a": [1, 2]}, from_step=1), stream.without({"a": [1, 2]}, from_step=1)]
    versions[2] = versions[2].without({"b": [3], "a": [4]}, from_step=2)
    state = pen.Loader(stream, 2).state_dict()
    for one in versions:
        loader = pen.Loader(one, 2, threads=0)
        loader.load_state_dict(state, strict=False)
        with pen.LossLog(tmp_path, loader, per="document") as log:
            batches = loader.forever()
            batch = next(batches)
            log(segment_losses(batch["tokens"], batch["segment"]))
            batches.close()
        state = loader.state_dict()
    run = Run.open(tmp_path, pen.Loader(versions[2], 2))
    assert run.table.steps.tolist() == [0, 1, 2]
    for step in range(3):
        visits = run.visits(step)
        assert visits.loss.tolist() == [ord(TEXTS[record][0]) for record in visits.id.tolist()]


def amended_mixture() -> tuple[pen.Stream, pen.Stream]:
    mixture = pen.mix({"a": records().shuffle(seed=1), "b": records(1000, 53).shuffle(seed=2)}, weights={"a": 2, "b": 1}, seed=3)
    return mixture, mixture.amend(4, weights={"a": 1, "b": 4})


def test_steps_of_a_run_before_it_was_amended_are_not_those_of_the_amended_one(tmp_path: Path) -> None:
    mixture, amended = amended_mixture()
    loader = pen.Loader(mixture, 8, threads=0)
    with pen.LossLog(tmp_path, loader) as log:
        log_steps(log, loader, 9)
    run = Run.open(tmp_path, pen.Loader(amended, 8))
    assert_losses_are_of_their_records(run, (0, 1000))
    assert certify_run(run).chain == certify(pen.Loader(mixture, 8), range(9)).chain


def test_what_a_run_did_behind_the_step_from_which_it_was_done_again_is_no_part_of_it(tmp_path: Path) -> None:
    stream = records().shuffle(seed=7)
    loader = pen.Loader(stream, 8, threads=0)
    with pen.LossLog(tmp_path, loader) as log:
        log_steps(log, loader, 10)
    again = pen.Loader(stream, 4, threads=0)
    again.load_state_dict(loader.state_at(5))
    with pen.LossLog(tmp_path, again) as log:
        log_steps(log, again, 2)
    table = LossTable.open(tmp_path)
    assert table.steps.tolist() == [0, 1, 2, 3, 4, 5, 6]  # 7, 8 and 9 of the first start had records that come again
    run = Run(table, pen.Loader(stream, 8))
    seen = [int(one) for step in table.steps.tolist() for one in run.visits(step).id]
    assert len(seen) == len(set(seen)) == 48


def test_certificates_agree_however_the_data_is_known_again() -> None:
    stream = records().shuffle(seed=7)
    found = [certify(pen.Loader(stream, 8, check=check), range(4)) for check in ("samples", "whole")]
    assert compare(*found).is_same


def test_block_that_says_each_step_has_nothing_is_damaged(tmp_path: Path) -> None:
    import struct

    from penstock.native import _core

    def crc(data: bytes) -> int:
        return int(_core.crc32c(np.frombuffer(data, np.uint8)))

    body = np.ones(5, "<f4").tobytes()
    head = struct.pack("<IIQIII", BLOCK_MAGIC, 5, 0, 5, 0, crc(body))
    stretch = Stretch(pen.Loader(records(), 8).state_at(0), "keep", 1, "document")
    path = tmp_path / "000001-00000.losses"
    path.write_bytes(head_bytes(stretch, 0) + head + struct.pack("<I", crc(head)) + body)
    with pytest.raises(pen.PenstockError, match="expected losses of a run"):
        LossTable.open(tmp_path)
