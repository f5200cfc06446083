"""Kill: runs a function in a child and kills it at its k-th system call of a kind, by strace."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable

_PR_SET_PTRACER = 0x59616D61
_HANG_S = 300


def killed_at(call: str, when: int, work: Callable[[], object]) -> bool:
    """Run ``work`` in a forked child, kill it when it makes the call for the ``when``-th time; False if it got through."""
    waiting, go = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1))  # let any process trace this one
            os.read(waiting, 1)
            signal.alarm(_HANG_S)  # a hang ends with a signal, and is reported as one
            work()
            os._exit(0)
        finally:
            os._exit(1)
    os.close(waiting)
    command = [
        "strace",
        "-f",
        "-o",
        os.devnull,
        "-e",
        f"trace={call}",
        "-e",
        f"inject={call}:signal=KILL:when={when}",
        "-p",
        str(child),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        said = strace.stderr.readline()
        os.write(go, b".")
        os.close(go)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        strace.communicate()
    assert "attached" in said, said
    assert code in (0, -signal.SIGKILL), code
    return code != 0
