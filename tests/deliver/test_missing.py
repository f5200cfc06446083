"""Without torch or jax there is a message that says what to install."""

import sys

import pytest
from tests.cli import warm

CODE = """
import sys
sys.modules[{missing!r}] = None
try:
    import penstock.deliver.{name}
except ImportError as error:
    print(type(error).__name__, error)
"""


def told(name: str, missing: str) -> str:
    code = CODE.format(name=name, missing=missing)
    done = warm.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_a_missing_framework_is_named_with_the_line_that_installs_it(name: str) -> None:
    assert told(name, name) == f"ImportError penstock.deliver.{name} needs {name}: pip install 'penstock[{name}]'\n"


def test_what_is_missing_within_a_framework_is_not_hidden() -> None:
    assert told("jax", "jaxlib").startswith("ModuleNotFoundError ")
    assert "penstock[jax]" not in told("jax", "jaxlib")


TRAINERS = """
import sys
for name, package in {packages!r}.items():
    sys.modules[package] = None
    try:
        __import__("penstock.deliver." + name)
    except ImportError as error:
        print(type(error).__name__, error)
"""


def test_a_missing_trainer_is_named_with_the_line_that_installs_it() -> None:
    packages = {"grain": "grain", "lightning": "lightning", "olmo_core": "olmo_core", "orbax": "orbax", "torchtitan": "torchtitan"}
    done = warm.run([sys.executable, "-c", TRAINERS.format(packages=packages)], capture_output=True, text=True, timeout=600)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "ImportError penstock.deliver.grain needs Grain: pip install grain",
        "ImportError penstock.deliver.lightning needs lightning: pip install lightning",
        "ImportError penstock.deliver.olmo_core needs OLMo-core: pip install ai2-olmo-core",
        "ImportError penstock.deliver.orbax needs Orbax: pip install orbax-checkpoint",
        "ImportError penstock.deliver.torchtitan needs torchtitan: pip install torchtitan",
    ]
