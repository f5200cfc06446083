"""Shard.from_environment: which rank this process is, by the variables of every launcher."""

import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch.distributed as dist

from penstock.order import Shard

PREFIXES = ("RANK", "WORLD_SIZE", "LOCAL_", "NODE_RANK", "GROUP_RANK", "OMPI_", "PMI_", "SLURM_")
BATCH_STEP, INTERACTIVE_STEP = str(0xFFFFFFFB), str(0xFFFFFFFA)
SRUN = {"SLURM_STEP_ID": "0", "SLURM_LOCALID": "1", "SLURM_NODEID": "0"}
LIGHTNING = {"WORLD_SIZE": "4", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher."""
    for name in os.environ:
        if name.startswith(PREFIXES):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Shard(0, 1)),
        # torchrun
        ({"RANK": "3", "WORLD_SIZE": "4"}, Shard(3, 4)),
        ({"RANK": "0", "WORLD_SIZE": "2", **SRUN, "SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, Shard(0, 2)),
        ({"RANK": "0", "WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, Shard(0, 1)),
        ({"WORLD_SIZE": "1"}, Shard(0, 1)),
        ({"RANK": "0"}, Shard(0, 1)),
        ({"RANK": "gold"}, Shard(0, 1)),
        # MPI
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, Shard(1, 2)),
        ({"PMI_RANK": "2", "PMI_SIZE": "3"}, Shard(2, 3)),
        ({"PMI_RANK": "2", "PMI_SIZE": "3", "WORLD_SIZE": "3"}, Shard(2, 3)),
        # SLURM: a task of srun
        ({**SRUN, "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, Shard(1, 2)),
        ({**SRUN, "SLURM_PROCID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "2"}, Shard(1, 2)),
        ({"SLURM_STEPID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, Shard(0, 2)),
        ({**SRUN, "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "WORLD_SIZE": "2"}, Shard(1, 2)),
        # SLURM: the shell of a batch script, or of an interactive job, is one process
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}, Shard(0, 1)),
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_ID": BATCH_STEP}, Shard(0, 1)),
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_ID": INTERACTIVE_STEP}, Shard(0, 1)),
        # Lightning's own launcher
        ({**LIGHTNING, "LOCAL_RANK": "0"}, Shard(0, 4)),
        ({**LIGHTNING, "LOCAL_RANK": "3"}, Shard(3, 4)),
        ({**LIGHTNING, "LOCAL_RANK": "1", "NODE_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, Shard(3, 4)),
        ({"WORLD_SIZE": "4", "LOCAL_RANK": "1", "GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, Shard(3, 4)),
        ({"WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, Shard(1, 4)),
        # Lightning's launcher within one task of srun
        ({**LIGHTNING, "LOCAL_RANK": "3", **SRUN, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, Shard(3, 4)),
    ],
)
def test_the_launcher_is_believed(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: Shard) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Shard.from_environment() == expected


@pytest.mark.parametrize(
    ("environment", "seen"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2"),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "LOCAL_RANK=1, WORLD_SIZE=2"),
        ({**LIGHTNING, "NODE_RANK": "1", "LOCAL_RANK": "0"}, "LOCAL_RANK=0, NODE_RANK=1, WORLD_SIZE=4"),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "2", "NODE_RANK": "0"}, "LOCAL_RANK=2, NODE_RANK=0, WORLD_SIZE=2"),
        ({"WORLD_SIZE": "4", "PMI_RANK": "0", "PMI_SIZE": "2"}, "PMI_RANK=0, WORLD_SIZE=4, PMI_SIZE=2"),
        ({"RANK": "3"}, "RANK=3"),
        ({"LOCAL_RANK": "1"}, "LOCAL_RANK=1"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_SIZE=2"),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, "SLURM_PROCID=1"),
        ({"WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_SIZE=4"),
        ({"WORLD_SIZE": "1", **SRUN, "SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, "SLURM_PROCID=2"),
        ({"WORLD_SIZE": "1", "LOCAL_RANK": "3"}, "LOCAL_RANK=3"),
        ({"WORLD_SIZE": "4", "NODE_RANK": "1", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "-1"}, "WORLD_SIZE=4"),
        ({"WORLD_SIZE": "8", "NODE_RANK": "0", "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "5"}, "LOCAL_RANK=5"),
    ],
)
def test_several_processes_without_a_rank_are_refused(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], seen: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=rf"cannot be determined from .*{seen}.*: call .* after torch.*init_process_group"):
        Shard.from_environment()


@pytest.mark.parametrize(
    ("rank", "world", "told"),
    [
        ("x", "2", "variable RANK, got 'x'"),
        ("0", "", "variable WORLD_SIZE, got ''"),
        ("2", "2", "RANK=2 and WORLD_SIZE=2"),
        ("-1", "2", "RANK=-1 and WORLD_SIZE=2"),
        ("0", "0", "RANK=0 and WORLD_SIZE=0"),
    ],
)
def test_nonsense_is_named(monkeypatch: pytest.MonkeyPatch, rank: str, world: str, told: str) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    with pytest.raises(ValueError, match=told):
        Shard.from_environment()


def jax_of(rank: int, world: int) -> ModuleType:
    module = ModuleType("jax")
    module.distributed = SimpleNamespace(is_initialized=lambda: True)  # type: ignore[attr-defined]
    module.process_index, module.process_count = lambda: rank, lambda: world  # type: ignore[attr-defined]
    return module


def test_a_process_group_goes_before_variables_and_one_of_several_before_one_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for jax: two real groups of several processes at once need two launchers. Each alone is run for real elsewhere."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert Shard.from_environment() == Shard(0, 1)
        monkeypatch.setitem(sys.modules, "jax", jax_of(2, 4))
        assert Shard.from_environment() == Shard(2, 4)
    finally:
        dist.destroy_process_group()
    assert Shard.from_environment() == Shard(2, 4)


def test_two_process_groups_that_differ_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 1, get_world_size=lambda: 2)
    monkeypatch.setitem(sys.modules, "torch.distributed", torch)
    monkeypatch.setitem(sys.modules, "jax", jax_of(1, 4))
    with pytest.raises(ValueError, match=r"torch.distributed says rank 1 of 2, jax.distributed rank 1 of 4: pass shard="):
        Shard.from_environment()
    monkeypatch.setitem(sys.modules, "jax", jax_of(1, 2))
    assert Shard.from_environment() == Shard(1, 2)


def test_no_framework_is_imported() -> None:
    code = "import sys; from penstock.order import Shard; Shard.from_environment(); print({'torch', 'jax'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.stdout, done.stderr) == ("set()\n", "")
