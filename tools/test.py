"""Runs the tests: all of them in two processes at once, one for each half; or with arguments for pytest, in one.

Results of the halves go to out/tests-*.xml. Exit code 0 if all passed.
"""

import subprocess
import sys
import time
from pathlib import Path

HALVES = (
    ("tests/cli", "tests/cluster", "tests/crash", "tests/deliver", "tests/order", "tests/store"),
    ("tests/interop", "tests/loader", "tests/native", "tests/remote", "tests/report", "tests/source", "tests/stream", "tests/view"),
)
OUT = Path("out")


def run_halves() -> int:
    """Both halves; the second one takes everything that is in no folder, too."""
    loose = sorted(str(path) for path in Path("tests").glob("test_*.py"))
    folders = {str(path) for path in Path("tests").iterdir() if list(path.glob("test_*.py"))}
    if folders != {folder for half in HALVES for folder in half}:
        raise SystemExit(
            f"{__file__}: expected every folder of tests in one of the halves, which are {HALVES}, found {sorted(folders)}"
        )
    OUT.mkdir(exist_ok=True)
    running = []
    for number, half in enumerate((HALVES[0], (*HALVES[1], *loose))):
        log = (OUT / f"tests-{number}.log").open("w")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={OUT}/tests-{number}.xml", *half]
        running.append((log, subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)))
    began, codes = time.monotonic(), []
    for log, process in running:
        codes.append(process.wait())
        log.close()
        print(f"{' '.join(process.args[6:])}\n{Path(log.name).read_text()}", flush=True)
    print(f"both halves took {time.monotonic() - began:.0f} s")
    return max(codes)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(subprocess.call([sys.executable, "-m", "pytest", *arguments]) if arguments else run_halves())
