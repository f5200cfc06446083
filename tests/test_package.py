"""What importing penstock does, and what it offers."""

import importlib
import json
import subprocess
import sys
from typing import ParamSpec, TypeVar

import pytest
from tests.cluster.engine import run

HEAVY = {"torch", "jax", "h5py", "obstore", "rich", "ray", "scipy", "pytest", "hypothesis"}


def test_import_loads_no_framework_and_prints_nothing() -> None:
    code = "import sys, json, penstock; json.dump(sorted(m.split('.')[0] for m in sys.modules), sys.stderr)"
    done = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert HEAVY.isdisjoint(json.loads(done.stderr))


@pytest.mark.parametrize(
    "name",
    [
        "penstock",
        "penstock.errors",
        "penstock.loader",
        "penstock.order",
        "penstock.report",
        "penstock.source",
        "penstock.store",
        "penstock.stream",
        "penstock.testing",
        "penstock.view",
    ],
)
def test_all_is_sorted_and_complete(name: str) -> None:
    check_all(name)


def test_all_of_the_module_for_ray_is_sorted_and_complete_in_a_process_of_its_own() -> None:
    assert run("-c", "from tests.test_package import check_all; check_all('penstock.cluster.ray'); print('checked')") == "checked\n"


def check_all(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__all__ == sorted(module.__all__, key=lambda s: (not s.isupper(), not s[0].isupper(), s))
    values = {n: value for n, value in vars(module).items() if not n.startswith("_") and not isinstance(value, ParamSpec | TypeVar)}
    public = {n for n, value in values.items() if f"{getattr(value, '__module__', '')}.".startswith(f"{name}.")}
    assert public <= set(module.__all__)
    assert all(hasattr(module, n) for n in module.__all__)
