"""The thread pool and the batch ring with one thing broken: the exploration of schedules must find every one.

``python -m tests.native.explore_mutants`` compiles each with the scheduler of ``native/tests/explore.h`` and runs it. It ends
with 1 if one was missed.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native"
POOL, RING = "thread_pool", "batch_ring"
SCHEDULES = "20000"

# A name, the file, a text in it, and what is there instead.
MUTANTS: dict[str, tuple[str, str, str]] = {
    "late-threads-find-the-next-job": (POOL, "ticket_.exchange((number << 32) - 1);", ""),
    "last-piece-wakes-nobody": (POOL, "        done_.notify_one();\n", ""),
    "last-piece-looks-for-waiters-too-early": (
        POOL,
        "if (finished_.fetch_add(1) + 1 == count && waiting_.load()) {",
        "const bool waits = waiting_.load();\n      if (finished_.fetch_add(1) + 1 == count && waits) {",
    ),
    "caller-does-not-say-that-it-waits": (POOL, "    waiting_.store(true);\n", ""),
    "last-piece-wakes-without-the-lock": (
        POOL,
        "        const std::lock_guard lock(mutex_);\n        done_.notify_one();\n",
        "        done_.notify_one();\n",
    ),
    "end-is-said-without-the-lock": (
        POOL,
        "      const std::lock_guard lock(mutex_);\n      closing_.store(true);\n",
        "      closing_.store(true);\n",
    ),
    "end-wakes-one-thread": (
        POOL,
        "    changed_.notify_all();\n    for (sync::Thread",
        "    changed_.notify_one();\n    for (sync::Thread",
    ),
    "pieces-are-claimed-by-load-and-store": (
        POOL,
        "if (!ticket_.compare_exchange_weak(ticket, ticket + 1)) continue;",
        "ticket_.store(ticket + 1);",
    ),
    "caller-leaves-before-the-last-piece": (
        POOL,
        "if (finished_.load() == count) return true;",
        "if (finished_.load() + 1 >= count) return true;",
    ),
    "two-jobs-at-once": (POOL, "    if (!turn.owns_lock()) return false;\n", ""),
    "a-job-wakes-nobody": (RING, "  several ? work_.notify_all() : work_.notify_one();\n", ""),
    "a-finished-batch-wakes-nobody": (RING, "  if (helps_ || &job == jobs_.front().get()) done_.notify_one();\n", ""),
    "room-wakes-nobody": (RING, "  if (!varying_.empty() && !jobs_.empty()) work_.notify_one();", ""),
    "close-wakes-one-thread": (
        RING,
        "  work_.notify_all();\n  const std::lock_guard turn",
        "  work_.notify_one();\n  const std::lock_guard turn",
    ),
    "close-is-not-heard": (RING, "return closing_ || claim(mine);", "return claim(mine);"),
    "claimed-is-taken-for-finished": (
        RING,
        "if (++job.finished == job.pieces()) advance(job, lock);",
        "++job.finished;\n  if (job.claimed == job.pieces()) advance(job, lock);",
    ),
}


def compiled(source: Path, target: Path) -> Path:
    """An object file, built for the scheduler of tests."""
    compiler = os.environ.get("CXX", "g++")
    subprocess.run(
        [compiler, "-std=c++20", "-O1", "-DPENSTOCK_EXPLORE", f"-I{NATIVE}", "-c", str(source), "-o", str(target)], check=True
    )
    return target


def run(objects: list[Path], program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Link and run."""
    subprocess.run([os.environ.get("CXX", "g++"), *map(str, objects), "-o", str(program)], check=True)
    return subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=600, check=False)


def main() -> int:
    missed = 0
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        sources = {POOL: NATIVE / "core/thread_pool.cpp", RING: NATIVE / "core/batch_ring.cpp"}
        others = {"buffer": NATIVE / "core/buffer_pool.cpp", "test": NATIVE / "tests/explore_test.cpp"}
        objects = {part: compiled(source, made / f"{part}.o") for part, source in {**sources, **others}.items()}
        for mutant, (part, old, new) in MUTANTS.items():
            text = sources[part].read_text()
            assert text.count(old) == 1, f"{mutant}: the text is not there once"
            (made / "mutant.cpp").write_text(text.replace(old, new))
            changed = compiled(made / "mutant.cpp", made / "mutant.o")
            done = run([*(o for p, o in objects.items() if p != part), changed], made / "mutant", SCHEDULES)
            wrong = [line for line in done.stdout.splitlines() if line.startswith("WRONG")]
            is_found = bool(wrong) or done.returncode < 0
            missed += not is_found
            sys.stdout.write(f"{mutant:42} {wrong[0] if wrong else done.returncode if is_found else 'MISSED'}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(MUTANTS)} mutants, {missed} missed\n")
    return missed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
