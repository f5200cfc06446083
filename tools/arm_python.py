"""Runs Python for arm64 in an emulator, with the wheel for it: ``python tools/arm_python.py -m pytest tests/order/test_golden.py``.

The interpreter comes from Debian's packages, unpacked into ``build/arm-python`` (nothing is installed); numpy and the test tools
are wheels from pip; penstock is the wheel in ``dist``. It needs apt-get, dpkg-deb and qemu-aarch64-static (Debian:
qemu-user-static).
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "arm-python"
DEBIAN = [
    "libbz2-1.0",
    "libc6",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libsqlite3-0",
    "libssl3",
    "libstdc++6",
    "libuuid1",
    "python3.11-minimal",
    "zlib1g",
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = (*PROJECT["dependencies"], "scipy>=1.11", "pytest>=9", "hypothesis>=6.100", "pillow>=10")
PLATFORMS = [*(f"manylinux_2_{version}_aarch64" for version in (28, 27, 24, 17)), "manylinux2014_aarch64"]


def unpack_interpreter(root: Path) -> None:
    """Debian's Python for arm64, from the mirrors this machine uses, without a change to the machine."""
    state = PLACE / "apt"
    (state / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (state / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        "Dir::State::Lists": state / "lists",
        "Dir::State::Status": "/dev/null",
        "Dir::Cache": state,
    }
    command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    subprocess.run([*command, "update"], check=False)  # a mirror without arm64 is no loss
    subprocess.run([*command, "download", *DEBIAN], cwd=state / "archives", check=True)
    for package in sorted((state / "archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)


def install(site: Path, *what: object) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", site, "--only-binary", ":all:"]
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    subprocess.run([*command, "--python-version", "3.11", *platforms, *map(str, what)], check=True)


def main() -> None:
    root, site = PLACE / "root", PLACE / "site"
    python = root / "usr" / "bin" / "python3.11"
    if not python.exists():
        unpack_interpreter(root)
    mark = site / ".packages"
    if not mark.exists() or mark.read_text() != " ".join(PACKAGES):
        install(site, *PACKAGES)
        mark.write_text(" ".join(PACKAGES))
    (wheel,) = (ROOT / "dist").glob("penstock-*-cp311-cp311-manylinux*_aarch64.whl")
    install(site, "--no-deps", wheel)
    environment = os.environ | {"PYTHONPATH": str(site), "QEMU_LD_PREFIX": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.exit(subprocess.run(["qemu-aarch64-static", python, *sys.argv[1:]], env=environment, cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
