"""Shard.from_environment: who this process is."""

import pytest

from penstock.order import Shard

NAMES = ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Shard(0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, Shard(3, 4)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, Shard(1, 2)),
        ({"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, Shard(0, 2)),
        ({"RANK": "3"}, Shard(0, 1)),
    ],
)
def test_the_first_who_says_something_is_believed(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: Shard
) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Shard.from_environment() == expected


@pytest.mark.parametrize(("rank", "world"), [("x", "2"), ("2", "2"), ("-1", "2"), ("0", "0")])
def test_nonsense_is_named(monkeypatch: pytest.MonkeyPatch, rank: str, world: str) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    with pytest.raises(ValueError, match=r"RANK=.* and WORLD_SIZE="):
        Shard.from_environment()
