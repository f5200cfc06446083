"""What is found about a machine: limits of containers, disks, page cache, and what data needs."""

import os
from pathlib import Path

import numpy as np
import pytest

import penstock as pen
from penstock import report
from penstock.report import doctor
from penstock.report.doctor import cached_share, drop_from_cache


def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str]) -> None:
    """A machine whose control groups are these."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(own)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\nHugePages_Total: 0\n")
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(doctor, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(doctor, "_GROUPS", tmp_path / "groups")


def test_limits_of_new_control_groups_hold_for_all_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "job/memory.max": "2000000000\n",
        "job/task/memory.max": "max\n",
        "job/task/memory.current": "900000000\n",
        "job/task/memory.stat": "anon 100000000\nfile 800000000\n",
        "job/cpu.max": "50000 100000\n",
        "job/task/cpu.max": "max 100000\n",
    }
    groups(tmp_path, monkeypatch, "0::/job/task\n", files)
    assert doctor.memory_limit() == 2_000_000_000
    assert doctor.available_memory() == 1_900_000_000
    assert doctor.allowed_cores() == 0.5


def test_limits_of_old_control_groups_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "memory/box/memory.limit_in_bytes": "3000000000\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/box/memory.usage_in_bytes": "1000000000\n",
        "cpu/box/cpu.cfs_quota_us": "25000\n",
        "cpu/box/cpu.cfs_period_us": "100000\n",
        "cpu/cpu.cfs_quota_us": "-1\n",
        "cpu/cpu.cfs_period_us": "100000\n",
    }
    groups(tmp_path, monkeypatch, "4:memory:/box\n1:cpu:/box\n", files)
    assert doctor.memory_limit() == 3_000_000_000
    assert doctor.available_memory() == 2_000_000_000
    assert doctor.allowed_cores() == 0.25


def test_without_control_groups_the_machine_is_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups(tmp_path, monkeypatch, "0::/\n", {})
    assert doctor.memory_limit() is None
    assert doctor.available_memory() == 8_192_000_000
    assert doctor.allowed_cores() == len(os.sched_getaffinity(0))


def test_this_process_takes_memory_and_others_a_share() -> None:
    assert doctor.resident().own_bytes > 1_000_000
    assert 0 <= doctor.Others().share() <= 1
    assert doctor.describe_machine()
    assert doctor.vector_instructions() in ("PLAIN", "AVX2", "AVX512")


def test_a_file_that_was_just_read_is_in_the_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(1 << 20))
    path.read_bytes()
    assert cached_share([path]) == 1.0
    with path.open("rb") as file:
        os.fsync(file.fileno())
        drop_from_cache(file.fileno())
    share = cached_share([path])
    assert share is not None
    assert 0 <= share <= 1
    assert cached_share([]) is None


def test_what_may_not_be_asked_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(1 << 20))
    path.read_bytes()
    monkeypatch.setattr("penstock.report.doctor._may_ask", lambda descriptor: False)
    assert cached_share([path]) in (1.0, None)  # None where the file system cannot read without waiting


def test_the_file_system_of_a_path_is_that_of_its_mount() -> None:
    assert doctor.filesystem_of("/proc/self") == "proc"
    assert doctor.filesystem_of("/sys") == "sysfs"


def test_a_disk_is_measured_and_nothing_is_left_on_it(tmp_path: Path) -> None:
    found = doctor.measure_disk(tmp_path)
    assert found.warm_bytes_per_s is not None
    assert found.warm_bytes_per_s > 0
    assert found.free_bytes > 0
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written_the_disk_is_not_measured() -> None:
    found = doctor.measure_disk("/proc/self")
    assert (found.warm_bytes_per_s, found.cold_bytes_per_s) == (None, None)


def test_a_machine_is_examined(tmp_path: Path) -> None:
    findings = report.examine()
    assert {one.level for one in findings} <= {"ok", "hurts", "breaks"}
    assert {"cores", "memory", "file system", "open files", "versions", "torch", "/dev/shm"} <= {one.name for one in findings}
    assert all(one.found for one in findings)


def named(findings: list[report.Finding], name: str) -> report.Finding:
    return next(one for one in findings if one.name == name)


def test_data_that_fits_in_memory_may_be_shuffled_as_a_whole(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((100, 8)))
    findings = report.examine([tmp_path / "x.npy"])
    assert "it fits in memory" in named(findings, "data").found
    assert named(findings, "shuffle").level == "ok"


def test_data_larger_than_memory_gets_a_window_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.zeros((10_000, 8)))
    monkeypatch.setattr(doctor, "available_memory", lambda: 400_000)
    with pen.open(tmp_path / "x.npy") as source:
        findings = report.examine([tmp_path / "x.npy"], source)
        block = source.blocks.size
    assert named(findings, "data").level == "hurts"
    assert named(findings, "shuffle").remedy.startswith(f"block={block}, window=1 keeps 100 kB in flight")


def test_an_optional_library_that_is_missing_is_named_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_OPTIONAL", (("no_such_module", "arrow", "Arrow files", "1"), ("numpy", "x", "y", "999")))
    findings = report.examine()
    assert named(findings, "no_such_module").remedy == "pip install 'penstock[arrow]'"
    assert named(findings, "numpy").level == "hurts"


def test_files_of_a_directory_are_found(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"x")
    assert doctor.files_of([tmp_path, tmp_path / "a" / "b", tmp_path / "nothing"]) == [tmp_path / "a" / "b"] * 2
