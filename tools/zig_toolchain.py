"""A CMake toolchain that compiles for another system with zig (PyPI: ziglang), whose headers and libraries are inside the package.

``python tools/zig_toolchain.py aarch64-linux-gnu.2.17 build/arm`` writes ``build/arm/toolchain.cmake`` and what it needs.
"""

import shlex
import sys
from pathlib import Path

import ziglang

ZIG = Path(ziglang.__file__).parent / "zig"  # not python -m ziglang: there are hundreds of calls

SYSTEMS = {"linux": "Linux", "macos": "Darwin"}

# No debug information: it takes long and is stripped anyway. zig compiles its C++ library once for every combination of
# optimised or not and stripped or not; with these flags the checks of CMake and everything else take the same one, which halves
# the first build.
FLAGS = {"linux": "-g0 -O2 -s", "macos": "-g0 -O2"}

# zig takes an object from its cache if source, headers and flags are the same, but not if it is asked for the list of the headers.
# So CMake gets no lists. A build must begin in an empty directory: in an old one a changed header would go unnoticed.
ARGUMENTS = """drop=
for word do
  shift
  if test -n "$drop"; then drop=; continue; fi
  case $word in
    -MD) continue ;;
    -MT|-MF) drop=1; continue ;;
%s  esac
  set -- "$@" "$word"
done
"""

# What zig's linker for macOS cannot do (0.17): read nanobind's list of what Python defines, link a bundle or strip dead code (it
# crashes). Python loads shared libraries as well as bundles.
FOR_MACOS = """    -Wl,@*) word=-Wl,-undefined,dynamic_lookup ;;
    -bundle) word=-shared ;;
    -Wl,-dead_strip) continue ;;
"""


def write(target: str, directory: Path, emulator: str = "") -> Path:
    """The toolchain file of a target as zig writes it: processor, system and C library with its version."""
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    processor, system, *_ = target.split(".")[0].split("-")

    def program(name: str, arguments: str) -> Path:
        path = directory / f"zig-{name}"
        words = ARGUMENTS % (FOR_MACOS if system == "macos" else "")
        path.write_text(f'#!/bin/sh\n{words}exec {shlex.quote(str(ZIG))} {arguments} "$@"\n')
        path.chmod(0o755)
        return path

    settings = {
        "CMAKE_SYSTEM_NAME": SYSTEMS[system],
        "CMAKE_SYSTEM_PROCESSOR": processor,
        "CMAKE_C_COMPILER": program("cc", f"cc -target {target}"),
        "CMAKE_CXX_COMPILER": program("cxx", f"c++ -target {target}"),
        "CMAKE_C_FLAGS_INIT": FLAGS[system],
        "CMAKE_CXX_FLAGS_INIT": FLAGS[system],
        "CMAKE_AR": program("ar", "ar"),
        "CMAKE_RANLIB": program("ranlib", "ranlib"),
        "CMAKE_LINK_DEPENDS_USE_LINKER": "OFF",  # an option of the linker that zig does not pass on
        "CMAKE_FIND_ROOT_PATH_MODE_PROGRAM": "NEVER",
        "CMAKE_CROSSCOMPILING_EMULATOR": emulator,
    }
    if system == "macos":  # zig has its own libraries; the name of the module is not needed, so neither is a tool that changes it
        settings |= {"CMAKE_OSX_SYSROOT": "", "CMAKE_INSTALL_NAME_TOOL": program("nothing", "version >/dev/null #")}
    path = directory / "toolchain.cmake"
    path.write_text("".join(f'set({name} "{value}")\n' for name, value in settings.items()))
    return path


if __name__ == "__main__":
    print(write(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
