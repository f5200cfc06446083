"""Damaged and forged logs of losses and certificates: a result or a typed error, in little memory."""

import os
from pathlib import Path

import numpy as np
import pytest
from tests.effort import count
from tests.hostile import mutate_losses
from tests.hostile.mutate_losses import parts_of, sealed

import penstock as pen
from penstock.errors import CorruptError, FormatError, NoMatchError, UnsafePathError
from penstock.trace import LossTable, Run, certify_run
from penstock.trace.loss_table import MAX_WORLD


def test_mutants_lead_to_the_right_losses_or_to_a_typed_error() -> None:
    outcomes, wrong = mutate_losses.campaign(count(30, 10_000), seed=1)
    assert wrong == []
    assert sum(outcomes.values()) == count(30, 10_000)
    assert {"damaged read", "forged refused", "certificate refused"} <= set(outcomes)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The file of a run of 60 steps."""
    loader = pen.Loader(pen.open({"x": np.arange(720)}).shuffle(seed=7), 12, threads=0)
    with pen.LossLog(tmp_path / "run", loader) as log:
        for batch in loader:
            log(batch["x"])
    return tmp_path / "run" / "000001-00000.losses"


@pytest.mark.parametrize("world", [MAX_WORLD + 1, 2**31, 7])
def test_ranks_that_no_batch_has_samples_for_are_refused(log: Path, world: int) -> None:
    head, blocks = parts_of(log.read_bytes())
    log.write_bytes(sealed(head | {"world": world}, blocks))
    with pytest.raises(CorruptError, match="the head is not that of a file of losses"):
        LossTable.open(log.parent)


def test_batches_of_far_more_samples_than_losses_are_refused(log: Path) -> None:
    head, blocks = parts_of(log.read_bytes())
    log.write_bytes(sealed(head | {"state": head["state"] | {"batch_size": 2**40}, "world": 2**20, "tail": "pad"}, blocks))
    with pytest.raises(CorruptError, match=r"batches of 1099511627776 samples, and its largest step has 12 losses"):
        LossTable.open(log.parent)


def test_ranks_that_are_missing_are_not_listed_without_end(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head, blocks = parts_of(log.read_bytes())
    log.write_bytes(sealed(head | {"world": 12}, blocks))
    run = Run.open(log.parent, pen.Loader(pen.open({"x": np.arange(720)}).shuffle(seed=7), 12))
    assert len(certify_run(run).partial) == 60
    monkeypatch.setattr("penstock.trace.certificate.MOST_MISSING", 100)
    with pytest.raises(CorruptError, match="certify the logs of all ranks together"):
        certify_run(run)


def test_block_of_four_billion_steps_without_losses_is_damaged(log: Path) -> None:
    head, blocks = parts_of(log.read_bytes())
    log.write_bytes(sealed(head, [([blocks[0][0][0], 2**32 - 1, 0, 0, 0], b"")]))
    with pytest.raises(NoMatchError):
        LossTable.open(log.parent)


def test_links_and_pipes_are_not_read(log: Path, tmp_path: Path) -> None:
    other = log.with_name("000002-00000.losses")
    os.symlink("/etc/passwd", other)
    with pytest.raises(UnsafePathError, match="found a link"):
        LossTable.open(log.parent)
    other.unlink()
    os.mkfifo(other)
    with pytest.raises(FormatError, match="no file"):
        LossTable.open(log.parent)
