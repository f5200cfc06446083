"""penstock.cluster.ray where there is no Ray. With it: ``make ray-train``, which takes a minute."""

from tests.cluster.engine import run


def test_without_ray_the_import_says_how_to_install_it() -> None:
    code = """
import sys
sys.modules["ray"] = None
try:
    import penstock.cluster.ray
except ImportError as error:
    print(error)
"""
    assert run("-c", code) == "this needs ray: pip install 'penstock[ray]'\n"
