"""What importing penstock does, and what it offers."""

import importlib
import importlib.metadata
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
import yaml
from tests.cluster.engine import run

import penstock
from penstock import records
from penstock.library import METHODS, MODULES

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "jax", "h5py", "obstore", "rich", "ray", "scipy", "pytest", "hypothesis"}


def test_import_loads_no_framework_and_prints_nothing() -> None:
    code = "import sys, json, penstock; json.dump(sorted(m.split('.')[0] for m in sys.modules), sys.stderr)"
    done = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert HEAVY.isdisjoint(json.loads(done.stderr))


def test_import_loads_nothing_until_something_is_used_and_then_what_that_needs() -> None:
    code = "import sys, penstock as pen; before = {*sys.modules}; data = pen.open({'x': [1, 2]}).shuffle(seed=1)\n"
    code += "next(iter(pen.Loader(data, 2))); print(*before, '|', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = (set(part.split()) for part in done.stdout.split("|"))
    assert before.isdisjoint({"numpy", "penstock.records", "penstock.loader"})
    assert {"numpy", "penstock.records", "penstock.loader"} <= after
    assert after.isdisjoint({"asyncio", "http.client", "ssl"})  # of clients, which only URLs need
    assert after.isdisjoint({"penstock.conversion", "penstock.run_plan", "penstock.source", "penstock.trace"})


def test_the_table_of_names_and_methods_is_what_the_modules_have() -> None:
    assert sorted(MODULES) == sorted(penstock.__all__)
    assert all(callable(getattr(importlib.import_module(module), name)) for name, module in MODULES.items())
    for name, module in METHODS.items():
        importlib.import_module(module)
        assert name in records._provided
        assert hasattr(penstock.Source, name)
    assert sorted(METHODS) == sorted(records._provided)


def test_every_name_and_module_can_be_had_after_the_import_alone() -> None:
    code = "import penstock as pen; [getattr(pen, name) for name in dir(pen)]; print(pen.order.Shuffle, pen.source.write_rows)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Shuffle" in done.stdout
    assert not hasattr(penstock, "no_such_name")
    assert set(penstock.__all__) <= set(dir(penstock))


def test_a_source_out_of_a_pickle_has_the_methods_of_higher_layers(tmp_path: Path) -> None:
    code = "import pickle, sys; source = pickle.loads(bytes.fromhex(sys.argv[1])); print(len(source.shuffle(seed=1)))"
    words = [sys.executable, "-c", code, pickle.dumps(penstock.open({"x": [1, 2, 3]})).hex()]
    assert subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path).stdout == "3\n"


def test_workflows_are_valid_yaml_and_make_targets_that_exist() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    workflows = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
    steps = [step for workflow in workflows for job in workflow["jobs"].values() for step in job["steps"]]
    lines = [line for step in steps for line in re.findall(r"^make (.*)", step.get("run", ""))]
    made = [word for line in lines for word in line.split() if "=" not in word]
    assert {"lint", "sdist", "test", "test-wheels", "wheels"} <= set(made) <= set(targets)


def test_the_version_of_the_package_is_the_one_in_the_source() -> None:
    assert importlib.metadata.version("penstock") == penstock.__version__


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
