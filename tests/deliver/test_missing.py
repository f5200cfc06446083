"""Without torch or jax there is a message that says what to install."""

import importlib
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


TRAINERS = {
    "grain": "Grain: pip install grain",
    "lightning": "lightning: pip install lightning",
    "olmo_core": "OLMo-core: pip install ai2-olmo-core",
    "orbax": "Orbax: pip install orbax-checkpoint",
    "torchtitan": "torchtitan: pip install torchtitan",
}


@pytest.mark.parametrize("name", TRAINERS)
def test_a_missing_trainer_is_named_with_the_line_that_installs_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch  # noqa: F401  # which some of them need first

    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"penstock.deliver.{name}", raising=False)
    with pytest.raises(ImportError, match=f"^penstock.deliver.{name} needs {TRAINERS[name]}$"):
        importlib.import_module(f"penstock.deliver.{name}")
