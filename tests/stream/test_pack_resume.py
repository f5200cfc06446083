"""A sample of the resume equality of packs; ``python -m tests.stream.pack_resume`` has all of it."""

from typing import Any

import pytest
from tests.effort import every, is_campaign
from tests.stream.pack_resume import RUNS, WORLDS, Data, batches, check, loaders

SOME = ((1, 2), (3, 1), (2, 3), (1, 2), (4, 1), (1, 8))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    made = Data(tmp_path_factory.mktemp("packs"))
    made.write()
    return made


@pytest.mark.parametrize("name", every(3, list(RUNS)))
def test_a_packed_stream_resumes_behind_every_step_on_other_ranks(data: Data, name: str) -> None:
    number = list(RUNS).index(name)
    how: dict[str, Any] = {"worlds": SOME[number % len(SOME)], "stride": 3, "rest": 1}
    seen = check(RUNS[name], data, 7, **({"worlds": WORLDS, "stride": 1, "rest": 2} if is_campaign() else how))
    assert seen.wrong == []
    assert seen.compared >= 2 * 7 + 2 * 2 * 2


def test_the_runs_pass_the_end_of_an_epoch_and_change_their_length(data: Data) -> None:
    assert all(24 < len(run.make(data)) < 7 * 24 for name, run in RUNS.items() if name in ("fit", "always", "never, truncated"))
    lengths = {batch["tokens"].shape for batch in _batches(RUNS["phases"], data, 12)}
    assert lengths == {(24, 16), (48, 8), (24, 40)}


def _batches(run: Any, data: Data, steps: int) -> list[dict[str, Any]]:
    with loaders(run.make(data), 1, run.options, None) as ranks:
        return list(batches(ranks, steps))
