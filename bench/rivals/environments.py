"""The rivals' versions on one page, and a virtual environment for each of them under .rivals/.

::

    python bench/rivals/environments.py              # all that are missing
    python bench/rivals/environments.py lmdb grain   # only these
    python bench/rivals/environments.py --list       # what is there, with versions

An environment is made once per list of pins; one that cannot be made leaves a file ``failed`` with the reason, and the
comparison says so.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ENVIRONMENTS", "PINS", "Environment", "python_of", "reason_missing"]

ENVIRONMENTS = Path(__file__).resolve().parent.parent.parent / ".rivals"
TORCH = "torch==2.13.0"
"""Installed first and alone where a rival needs it, so that nothing else chooses another build."""


@dataclass(frozen=True)
class Environment:
    """What goes into one environment; the first pin is the rival itself."""

    pins: tuple[str, ...]
    torch: bool = False
    python: str = "3.11"
    build: tuple[str, ...] = ()
    """Packages its build needs; with them, the build takes place without isolation."""
    system: tuple[str, ...] = ()
    """Debian packages its build needs."""
    shared: tuple[str, ...] = ()
    """Packages that are installed without what they depend on: that is taken from the environment of this program, torch too."""


ZSTD, NUMPY = "zstandard==0.25.0", "numpy==2.4.6"
PINS: dict[str, Environment] = {
    "numpy": Environment((NUMPY, ZSTD)),
    "torch": Environment((NUMPY,), torch=True),
    "h5py": Environment(("h5py==3.16.0", NUMPY, ZSTD)),
    "lmdb": Environment(("lmdb==3.0.0", NUMPY, ZSTD)),
    "grain": Environment(("grain==0.2.18", "array-record==0.8.6", NUMPY, ZSTD)),
    "mosaic": Environment(("mosaicml-streaming==0.13.0", "numpy==2.1.3", ZSTD), torch=True),
    "litdata": Environment(("litdata==0.2.76", "zstd==1.5.7.2", NUMPY), torch=True),
    "webdataset": Environment(("webdataset==1.0.2", NUMPY, ZSTD), torch=True),
    "datasets": Environment(("datasets==5.2.0", "pyarrow==26.0.1", NUMPY, ZSTD)),
    "lance": Environment(("pylance==14.0.2", "pyarrow==26.0.1", NUMPY, ZSTD)),
    "ffcv": Environment(
        ("ffcv==1.0.2", "numpy==2.2.6", "numba==0.61.2", "pillow==13.0.0"),
        torch=True,
        build=("setuptools==75.8.0", "wheel"),
        system=("g++", "pkg-config", "libopencv-dev", "libturbojpeg0-dev"),
    ),
    "loaderx": Environment(("loaderx==2.8.19", ZSTD), python="3.13"),
    "images": Environment(
        ("spdl==0.8.0", "simplejpeg==1.9.0", "scikit-image==0.26.0", "nvidia-dali-cuda120==2.4.0", "pillow==13.0.0", NUMPY),
        system=("libavdevice59", "libavfilter8"),  # of FFmpeg 5, for SPDL
    ),
    "torchvision": Environment((), shared=("torchvision==0.28.0",)),
    "trl": Environment((), shared=("trl==1.16.0",)),
    "olmo": Environment(
        ("cached_path==1.8.10", "omegaconf==2.3.1", "msgspec==0.22.0", "importlib_resources==7.1.0"),
        shared=("ai2-olmo-core==3.0.0", "dataclass-extensions==0.5.0", "bettermap==1.3.1"),
    ),
}
"""By name of the adapter; the last ones are of bench/images.py and bench/pack.py."""


def python_of(name: str) -> Path:
    """The interpreter of an environment."""
    return ENVIRONMENTS / name / "bin" / "python"


def reason_missing(name: str) -> str | None:
    """Why an environment cannot be used, in a few words; None if it can."""
    if _is_ready(name):
        return None
    failed = ENVIRONMENTS / name / "failed"
    return failed.read_text() if failed.exists() else "not installed here: make rivals"


def _is_ready(name: str) -> bool:
    stamp = ENVIRONMENTS / name / "ready"
    return stamp.exists() and stamp.read_text() == _stamp(PINS[name])


def _stamp(environment: Environment) -> str:
    return json.dumps([TORCH if environment.torch else "", *environment.build, *environment.shared, *environment.pins])


def make(name: str) -> str | None:
    """Make one environment anew; the reason if that failed."""
    environment, folder = PINS[name], ENVIRONMENTS / name
    shutil.rmtree(folder, ignore_errors=True)
    interpreter = _interpreter(environment.python)
    if interpreter is None:
        return _fail(folder, f"needs Python {environment.python}")
    subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
    if environment.shared:
        own, theirs = (sysconfig.get_path("purelib", vars={"base": str(base)}) for base in (folder, sys.prefix))
        Path(own, "shared.pth").write_text(theirs + "\n")
    for requirements, options in _steps(environment):
        command = [str(python_of(name)), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *options, *requirements]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            (folder / "install.log").write_text(done.stdout + done.stderr)
            needs = f" (its build needs {', '.join(environment.system)})" if environment.system else ""
            return _fail(folder, f"{requirements[0]} could not be installed here{needs}")
    (folder / "ready").write_text(_stamp(environment))
    return None


def _steps(environment: Environment) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    steps: list[tuple[tuple[str, ...], tuple[str, ...]]] = [((TORCH,), ())] if environment.torch else []
    if environment.shared:
        steps.append((environment.shared, ("--no-deps",)))
        return [*steps, (environment.pins, ())] if environment.pins else steps
    if environment.build:
        return [*steps, (environment.build, ()), (environment.pins[1:], ()), (environment.pins[:1], ("--no-build-isolation",))]
    return [*steps, (environment.pins + ((TORCH,) if environment.torch else ()), ())]


def _interpreter(version: str) -> str | None:
    pyenv = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    return str(pyenv[-1]) if pyenv else shutil.which(f"python{version}")


def _fail(folder: Path, reason: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "failed").write_text(reason)
    return reason


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Virtual environments of the rivals.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PINS)}; unless given, all")
    parser.add_argument("--list", action="store_true", help="only say what is there")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(PINS):
        parser.error(f"expected names among {', '.join(PINS)}, found {', '.join(sorted(unknown))}")
    for name in options.names or PINS:
        if not options.list and not _is_ready(name):
            print(f"{name}: being made", flush=True)
            make(name)
        print(f"{name}: {reason_missing(name) or ', '.join(PINS[name].shared + PINS[name].pins)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
