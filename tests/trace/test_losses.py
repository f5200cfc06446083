"""The log of losses against a dict; kills, resumes, torn tails, failing disks, and the bytes themselves."""

import base64
import errno
import json
import os
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.cli import warm

import penstock as pen
from penstock.errors import CorruptError, FormatError, NoMatchError
from penstock.trace import ABSENT, MISSING, LossLogWarning, LossTable, segment_losses
from penstock.trace.loss_log import block_bytes, head_bytes, parse_name
from penstock.trace.loss_table import RankFile, is_missing

GOLDEN = Path(__file__).parents[1] / "golden" / "losses-v1.json"
NUM_RECORDS = 97


def make_loader(batch_size: int = 8, world: int = 1, rank: int = 0, tail: str = "wrap") -> pen.Loader:
    data = pen.open({"x": np.arange(NUM_RECORDS)})
    return pen.Loader(data.shuffle(seed=7), batch_size, shard=pen.Shard(rank, world), tail=tail, threads=0)


class Model:
    """What must be in a log: for every step the start it belongs to, and the losses of every rank. A start with other batches
    takes the place of all steps from its first on.
    """

    def __init__(self) -> None:
        self.steps: dict[int, tuple[object, dict[int, list[float]]]] = {}

    def write(self, key: object, step: int, rank: int, losses: list[float]) -> None:
        self.steps = {known: found for known, found in self.steps.items() if known < step or found[0] == key}
        self.steps.setdefault(step, (key, {}))[1][rank] = losses


starts = st.lists(
    st.fixed_dictionaries(
        {
            "back": st.integers(0, 6),  # steps before the end of the last start at which this one begins
            "world": st.sampled_from([1, 2, 4]),
            "batch_size": st.sampled_from([4, 8, 12]),
            "steps": st.integers(1, 8),
            "buffer": st.sampled_from([4, 40, 4000]),
            "cuts": st.lists(st.integers(0, 300), min_size=4, max_size=4),  # bytes that a kill takes from the file of each rank
        }
    ),
    min_size=1,
    max_size=4,
)


@given(starts)
def test_log_is_a_dict_of_steps_whatever_was_killed_and_resumed(tmp_path_factory, starts):
    path = tmp_path_factory.mktemp("run")
    model, at, value = Model(), None, 0.0
    for start in starts:
        ahead = make_loader(start["batch_size"], start["world"])
        if at is not None:
            before, end = at
            before.seek(max(before.schedule.start, end - start["back"]))
            ahead.load_state_dict(before.state_dict())
        state, first = ahead.state_dict(), ahead.step
        anchor = json.dumps([ahead.state_at(ahead.schedule.start), start["world"]], sort_keys=True)
        for rank in range(start["world"]):
            loader = make_loader(start["batch_size"], start["world"], rank)
            loader.load_state_dict(state)
            known = set(os.listdir(path))
            log = pen.LossLog(path, loader, buffer=start["buffer"], seconds=1e9)
            flushed: list[tuple[int, int, list[float]]] = []  # the size of the file after it, the step, its losses
            waiting: list[tuple[int, list[float]]] = []
            batches = loader.forever()
            for _ in range(start["steps"]):
                batch = next(batches)
                losses = [value + k for k in range(len(batch["x"]))]
                value += len(losses)
                log(losses)
                waiting.append((loader.step - 1, losses))
                new = set(os.listdir(path)) - known
                size = sum(os.path.getsize(path / name) for name in new)
                if log.written == sum(len(one) for _, _, one in flushed) + sum(len(one) for _, one in waiting):
                    flushed += [(size, *one) for one in waiting]
                    waiting = []
            batches.close()
            log._held = []  # killed: what is in memory is gone
            log.close()
            for name in set(os.listdir(path)) - known:
                size = os.path.getsize(path / name)
                kept = max(0, size - start["cuts"][rank])
                os.truncate(path / name, kept)
                for end, step, losses in flushed:
                    if end <= kept:
                        model.write(anchor, step, rank, losses)
        ahead.seek(first + start["steps"])
        at = ahead, first + start["steps"]
    if not model.steps:
        with pytest.raises(NoMatchError):
            LossTable.open(path)
        return
    table = LossTable.open(path)
    assert table.steps.tolist() == sorted(model.steps)
    assert table.damaged == 0
    for place, step in enumerate(sorted(model.steps)):
        expected = model.steps[step][1]
        assert {rank: losses.tolist() for rank, losses in table.of(step).items()} == expected
        flat = [one for losses in expected.values() for one in losses]
        assert table.num_losses[place] == len(flat)
        assert table.mean[place] == pytest.approx(np.mean(flat))
        assert table.ranks[place] == len(expected)


@given(st.lists(st.lists(st.floats(width=32), max_size=5), min_size=1, max_size=6), st.integers(0, 2**40))
def test_any_losses_come_back_bit_by_bit(steps, first):
    counts = [len(one) for one in steps]
    losses = np.array([loss for one in steps for loss in one], np.float32)
    written = block_bytes(first, counts, losses)
    stretch = pen.trace.loss_log.Stretch(make_loader().state_at(0), "wrap", 1, "document")
    with _file(head_bytes(stretch, 0) + written) as file:
        (block,) = file.blocks
        assert (block.first, block.counts.tolist()) == (first, counts)
        assert block.losses.tobytes() == losses.tobytes()


class _file:  # noqa: N801 - a context
    def __init__(self, data: bytes) -> None:
        self.data = data

    def __enter__(self) -> RankFile:
        import tempfile

        self.path = tempfile.mkstemp(suffix=".losses")
        os.write(self.path[0], self.data)
        return RankFile(Path(self.path[1]), 1)

    def __exit__(self, *failed: object) -> None:
        os.close(self.path[0])
        os.unlink(self.path[1])


def _logged(path: Path, steps: int = 12, **options) -> pen.Loader:
    loader = make_loader()
    with pen.LossLog(path, loader, **options) as log:
        batches = loader.forever()
        for _ in range(steps):
            log(next(batches)["x"] / 10)
        batches.close()
    return loader


def test_every_cut_of_a_file_keeps_all_whole_blocks(tmp_path):
    _logged(tmp_path, buffer=64)
    (name,) = os.listdir(tmp_path)
    whole = (tmp_path / name).read_bytes()
    full = RankFile(tmp_path / name, 1)
    ends = (
        np.cumsum([0, *(32 + 4 * block.losses.size for block in full.blocks)])
        + len(whole)
        - sum(32 + 4 * block.losses.size for block in full.blocks)
    )
    for size in range(len(whole)):
        (tmp_path / name).write_bytes(whole[:size])
        assert len(RankFile(tmp_path / name, 1).blocks) == int(np.sum(ends[1:] <= size))


def test_flipped_bits_are_never_taken_for_losses(tmp_path):
    _logged(tmp_path, buffer=64)
    (name,) = os.listdir(tmp_path)
    whole = bytearray((tmp_path / name).read_bytes())
    known = {loss for block in RankFile(tmp_path / name, 1).blocks for loss in block.losses.tolist()}
    for place in range(0, len(whole), 3):
        damaged = whole.copy()
        damaged[place] ^= 0x10
        (tmp_path / name).write_bytes(damaged)
        try:
            found = RankFile(tmp_path / name, 1)
        except (CorruptError, FormatError):
            continue
        assert {loss for block in found.blocks for loss in block.losses.tolist()} <= known
        assert found.damaged or found.unread_bytes or bytes(damaged[place : place + 1]) == b"\x10"  # padding of the head


def test_golden_file_is_written_and_read_as_ever(tmp_path):
    golden = json.loads(GOLDEN.read_text())
    for name, text in golden["files"].items():
        (tmp_path / name).write_bytes(base64.b64decode(text))
    table = LossTable.open(tmp_path)
    assert table.steps.tolist() == golden["steps"]
    found = [[rank, losses.view(np.uint32).tolist()] for step in golden["steps"] for rank, losses in table.of(step).items()]
    assert found == golden["losses"]
    again = tmp_path / "again"
    make_golden(again)
    assert {path.name: base64.b64encode(path.read_bytes()).decode() for path in again.iterdir()} == golden["files"]


def make_golden(path: Path) -> None:
    """The run in the golden file: two ranks, then one with another batch size, with losses of every kind."""
    special = np.array([0.5, np.inf, -np.inf, np.nan, MISSING, ABSENT, 1e-40, 3e38], np.float32)
    state = None
    for world, batch_size, steps in ((2, 8, 3), (1, 4, 2)):
        for rank in range(world):
            loader = make_loader(batch_size, world, rank)
            if state is not None:
                loader.load_state_dict(state)
            with pen.LossLog(path, loader, per="document") as log:
                batches = loader.forever()
                for _ in range(steps):
                    next(batches)
                    log(special[rank : rank + 4 + loader.step % 3])
                batches.close()
        state = make_loader(8).state_at(2)


def test_kill_loses_at_most_the_buffer(tmp_path):
    program = f"""
import os, signal, numpy as np, penstock as pen
loader = pen.Loader(pen.open({{"x": np.arange({NUM_RECORDS})}}).shuffle(seed=7), 8, tail="wrap", threads=0)
log = pen.LossLog({str(tmp_path)!r}, loader, buffer=400, seconds=1e9)
for batch in loader.forever():
    log(batch["x"] / 10)
    if loader.step == 1000:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    done = warm.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -signal.SIGKILL
    table = LossTable.open(tmp_path)
    losses = int(table.num_losses.sum())
    assert 8000 - 100 - 8 <= losses <= 8000
    assert table.steps.tolist() == list(range(losses // 8))


def test_program_that_ends_without_closing_loses_nothing(tmp_path):
    program = f"""
import numpy as np, penstock as pen
loader = pen.Loader(pen.open({{"x": np.arange({NUM_RECORDS})}}).shuffle(seed=7), 8, threads=0)
log = pen.LossLog({str(tmp_path)!r}, loader)
for batch in loader:
    log(batch["x"] / 10)
"""
    warm.run([sys.executable, "-c", program], check=True)
    assert int(LossTable.open(tmp_path).num_losses.sum()) == NUM_RECORDS


def test_forked_child_writes_nothing(tmp_path):
    loader = make_loader()
    log = pen.LossLog(tmp_path, loader)
    next(batches := loader.forever())
    log(np.zeros(8))
    child = os.fork()
    if child == 0:
        log.close()
        os._exit(0)
    os.waitpid(child, 0)
    log.close()
    batches.close()
    assert int(LossTable.open(tmp_path).num_losses.sum()) == 8


# Never a raise


def log_all(log: pen.LossLog, batches: list) -> None:
    for losses in batches:
        log(losses)
    log.close()


def test_what_cannot_be_written_is_counted_and_warned_of_once(tmp_path):
    (tmp_path / "file").write_text("")
    loader = make_loader()
    log = pen.LossLog(tmp_path / "file" / "run", loader, buffer=4)
    with pytest.warns(LossLogWarning, match="training continues") as caught:
        log_all(log, [batch["x"] for batch, _ in zip(loader.forever(), range(5), strict=False)])
    loader.close()
    assert (len(caught), log.lost, log.written) == (1, 40, 0)


def test_wrong_numbers_of_losses_are_refused_not_misfiled(tmp_path):
    loader = make_loader()
    next(batches := loader.forever())
    log = pen.LossLog(tmp_path, loader)
    with pytest.warns(LossLogWarning, match="expected 8 losses of step 0, one per sample of this rank, got 7"):
        log_all(log, [np.zeros(7)])
    batches.close()
    assert (log.lost, log.written) == (7, 0)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("losses", ["abc", object(), [[1.0], [1.0, 2.0]], None])
def test_anything_that_is_no_loss_is_counted(tmp_path, losses):
    loader = make_loader()
    next(batches := loader.forever())
    log = pen.LossLog(tmp_path, loader)
    with pytest.warns(LossLogWarning):
        log_all(log, [losses])
    batches.close()
    assert log.written == 0
    assert log.lost >= 1


def test_log_without_a_batch_or_loader_warns(tmp_path):
    with pytest.warns(LossLogWarning, match="has returned no batch yet"):
        pen.LossLog(tmp_path, make_loader())([1.0])
    with pytest.warns(LossLogWarning, match="has no loader"):
        pen.LossLog(tmp_path)([1.0])


def test_warnings_that_are_errors_do_not_reach_the_training(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log = pen.LossLog(tmp_path)
        log([1.0, 2.0])
    assert log.lost == 2


def test_failed_write_leaves_whole_blocks_and_the_log_goes_on(tmp_path, monkeypatch):
    loader, write = make_loader(), os.write
    log = pen.LossLog(tmp_path, loader, buffer=4)
    fails = [False]

    def failing(descriptor: int, data: memoryview) -> int:
        if fails[0]:
            write(descriptor, bytes(data)[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", failing)
    batches = loader.forever()

    def train() -> None:
        for step in range(9):
            batch = next(batches)
            fails[0] = step in (0, 4, 5)
            log(batch["x"])
        log.close()

    with pytest.warns(LossLogWarning, match="No space left"):
        train()
    batches.close()
    assert (log.written, log.lost) == (48, 24)
    table = LossTable.open(tmp_path)
    assert table.steps.tolist() == [1, 2, 3, 6, 7, 8]
    assert table.unread_bytes == 0


def test_bad_arguments_are_refused_when_the_log_is_made(tmp_path):
    with pytest.raises(ValueError, match="per must be one of sample, document, got 'token'"):
        pen.LossLog(tmp_path, per="token")
    with pytest.raises(ValueError, match="restart=True"):
        pen.LossLog(tmp_path, pen.Loader(pen.open({"x": np.arange(4)}), 2, restart=True))
    with pytest.raises(TypeError, match="expected a penstock Loader, got list"):
        pen.LossLog(tmp_path, [])
    with pytest.raises(TypeError, match="path or URL that the data was opened by"):
        pen.LossLog(tmp_path, data=np.arange(3))


def test_directories_without_losses_are_told(tmp_path):
    with pytest.raises(NoMatchError, match="expected the directory of a run"):
        LossTable.open(tmp_path / "nowhere")
    with pytest.raises(NoMatchError, match="expected losses of a run"):
        LossTable.open(tmp_path)
    (tmp_path / "000001-00000.losses").write_bytes(b"something else")
    with pytest.raises(FormatError, match="expected a file of losses"):
        LossTable.open(tmp_path)


def test_names_of_files_are_parsed():
    assert parse_name("000012-00003.losses") == (12, 3)
    assert parse_name("12-3.losses") is None
    assert parse_name("000012-00003.losses.tmp") is None


# Losses of documents


def naive_segments(losses, segment, weights, first):
    found = []
    for row, numbers, counted in zip(losses, segment, weights, strict=True):
        for document in range(first, numbers.max(initial=first - 1) + 1):
            mine = (numbers == document) & (counted != 0)
            found.append((row[mine] * counted[mine]).sum() / counted[mine].sum() if mine.any() else None)
    return found


segments = st.integers(0, 1).flatmap(
    lambda first: st.tuples(
        st.just(first),
        st.lists(st.lists(st.integers(first - 1, first + 4), min_size=6, max_size=6).map(sorted), min_size=1, max_size=4),
        st.lists(st.sampled_from([0, 1]), min_size=24, max_size=24),
    )
)


@given(segments)
def test_segment_losses_of_numpy_torch_and_jax_are_means(drawn):
    import jax
    import jax.numpy as jnp

    from penstock.deliver.jax import segment_losses as of_jax
    from penstock.deliver.torch import segment_losses as of_torch

    first, rows, mask = drawn
    segment = np.array(rows, np.int32)
    losses = np.arange(segment.size, dtype=np.float32).reshape(segment.shape) / 7
    weights = np.array(mask, np.float32)[: segment.size].reshape(segment.shape)
    expected = naive_segments(losses, segment, weights, first)
    by_torch = of_torch(torch.tensor(losses), torch.tensor(segment), torch.tensor(weights), first_segment=first)
    by_jax = jax.jit(of_jax, static_argnames=("most", "first_segment"))(
        jnp.asarray(losses), jnp.asarray(segment), jnp.asarray(weights), most=6, first_segment=first
    )
    padded = [np.asarray(by_torch).reshape(-1), np.asarray(by_jax).reshape(-1)]
    for found in (segment_losses(losses, segment, weights, first_segment=first), *padded):
        found = found[found.view(np.uint32) != ABSENT.view(np.uint32)]
        assert len(found) == len(expected)
        missing = is_missing(found)
        assert missing.tolist() == [one is None for one in expected]
        assert found[~missing] == pytest.approx([one for one in expected if one is not None], rel=1e-5)


def test_torch_losses_with_gradients_and_half_precision_are_logged(tmp_path):
    loader = make_loader(4)
    with pen.LossLog(tmp_path, loader) as log:
        batches = loader.forever()
        next(batches)
        losses = torch.arange(4.0, requires_grad=True) * 2
        log(losses)
        losses.data.zero_()  # the log has a copy
        next(batches)
        log(torch.arange(4.0, dtype=torch.bfloat16))
        batches.close()
    table = LossTable.open(tmp_path)
    assert table.of(0)[0].tolist() == [0, 2, 4, 6]
    assert table.of(1)[0].tolist() == [0, 1, 2, 3]


if __name__ == "__main__":  # writes the golden file; only for a new version of the format
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory, "run")
        make_golden(made)
        table = LossTable.open(made)
        steps = table.steps.tolist()
        golden = {
            "files": {path.name: base64.b64encode(path.read_bytes()).decode() for path in sorted(made.iterdir())},
            "steps": steps,
            "losses": [[rank, one.view(np.uint32).tolist()] for step in steps for rank, one in table.of(step).items()],
        }
        GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")
