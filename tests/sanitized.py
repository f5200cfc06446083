"""Limits of memory and time for hostile data, and what becomes of them where the native module is watched (make sanitize-python).

Run as a program, it makes sure that the module is watched: a read behind the end of an allocation must end a process.
"""

import functools
import resource
import subprocess
import sys
from pathlib import Path

from penstock.native import _core


@functools.cache
def is_sanitized() -> bool:
    """Whether the native module was built with the address sanitizer."""
    return b"__asan_init" in Path(_core.__file__).read_bytes()


def limit_address_space(more_bytes: int) -> None:
    """From here on this process may take so many bytes of address space beyond what it has.

    Not under the sanitizer, which maps terabytes, and keeps what was freed to notice who still uses it.
    """
    if not is_sanitized():
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more_bytes,) * 2)


def patience_s(seconds: int) -> int:
    """How long hostile data may take before it counts as a hang: longer under the sanitizer, which slows everything down."""
    return 10 * seconds if is_sanitized() else seconds


BEHIND_THE_END = """
import ctypes
import numpy as np
from penstock.native import _core

malloc = ctypes.CDLL(None).malloc
malloc.restype = ctypes.c_void_p
_core.crc32c(np.frombuffer((ctypes.c_uint8 * 65).from_address(malloc(64)), np.uint8))
"""


def main() -> int:
    """0 if the sanitizer reports what the native module should not do."""
    done = subprocess.run([sys.executable, "-c", BEHIND_THE_END], capture_output=True, text=True)
    is_noticed = done.returncode != 0 and "heap-buffer-overflow" in done.stderr
    sys.stdout.write(f"{_core.__file__}: {'watched' if is_noticed else 'NOT watched: ' + done.stderr}\n")
    return 0 if is_sanitized() and is_noticed else 1


if __name__ == "__main__":
    sys.exit(main())
