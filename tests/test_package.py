"""What importing penstock does, and what it offers."""

import importlib
import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "jax", "h5py", "obstore", "rich", "ray", "scipy", "pytest", "hypothesis"}


def test_import_loads_no_framework_and_prints_nothing() -> None:
    code = "import sys, json, penstock; json.dump(sorted(m.split('.')[0] for m in sys.modules), sys.stderr)"
    done = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert HEAVY.isdisjoint(json.loads(done.stderr))


@pytest.mark.parametrize(
    "name", ["penstock", "penstock.errors", "penstock.interfaces", "penstock.order", "penstock.store", "penstock.testing"]
)
def test_all_is_sorted_and_complete(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__all__ == sorted(module.__all__, key=lambda s: (not s.isupper(), not s[0].isupper(), s))
    public = {n for n in vars(module) if not n.startswith("_") and getattr(vars(module)[n], "__module__", "").startswith(name)}
    assert public <= set(module.__all__)
    assert all(hasattr(module, n) for n in module.__all__)
