"""Addresses and parameters from outside: 400 or 404 with a plain sentence, never a trace, never a path of this machine."""

from pathlib import Path

import pytest
from tests.view.serving import Visitor, serving

import penstock as pen
from penstock.view.dataset import ShownData, without_paths
from penstock.view.server import MOST_RECORDS, Routes

BAD_PATHS = (
    "record/-1",
    "api/record/-1",
    "api/record/80",
    "api/record/99999999999999999999",
    "api/record/999999999999999999999",
    "api/record/1e3",
    "api/record/%D9%A3",
    "api/record/0x1",
    "api/record/1%00",
    "api/record/1%0a",
    "api/record/",
    "api/record/1/2",
    "..%2f..%2fetc%2fpasswd",
    "../../../../etc/passwd",
    "%2e%2e/%2e%2e/etc/passwd",
    "....//",
    "static/app.js",
    "app.js/",
    "app.js%00",
    "./app.js",
    "APP.JS",
    "__init__.py",
    "routes.py",
    "image/0",
    "image/99/1",
    "image/-1/1",
    "image/0/80",
    "image/9999/0",
    "image/1/1",
    "image/2/1",
    "%00",
    "api",
    "api/",
    "~",
    "*",
)
BAD_QUERIES = (
    "api/records?count=1000000000",
    "api/records?count=0",
    "api/records?count=-1",
    "api/records?count=1.5",
    "api/records?count=x",
    "api/records?start=-1",
    "api/records?start=99999999999999999999",
    "api/records?start=1&start=2",
    "api/records?unknown=1",
    "api/records?count=%00",
    "api/records?count=%ff",
    "api/records?count=1%0d%0aSet-Cookie:a",
    "api/records?count=1_0",
    "api/records?count=+1",
    "api/records?generation=0",
    "api/records?generation=-1",
    "api/records?" + "&".join(f"a{i}=1" for i in range(100)),
    "api/records?start=" + "1" * 5000,
    "api/records?start",
    "api/batch?step=-1",
    "api/batch?step=99999999999999999999",
    "api/batch?batch=0",
    "api/batch?batch=1000000000",
    "api/batch?order=random",
    "api/batch?seed=-1",
    "api/batch?seed=18446744073709551616",
    "api/order?block=0",
    "api/order?window=0",
    "api/order?lanes=100000",
    "api/order?epoch=x",
    "api/mix?field=99",
    "api/mix?field=0",
    "image/0/1?edge=0",
    "image/0/1?edge=1000000",
    "api/live?since=1",
    "api/chunks?x=1",
)


@pytest.mark.parametrize("path", BAD_PATHS)
def test_bad_paths_are_refused(visitor: Visitor, path: str) -> None:
    reply = visitor.get(path)
    assert reply.status in (400, 403, 404)
    assert list(reply.json) == ["error"]
    assert "root:" not in reply.json["error"]


@pytest.mark.parametrize("path", BAD_QUERIES)
def test_bad_parameters_are_refused(visitor: Visitor, path: str) -> None:
    reply = visitor.get(path)
    assert reply.status == 400
    assert len(reply.json["error"]) < 400
    assert "Set-Cookie" not in reply.headers


@pytest.mark.parametrize(
    "path",
    [
        f"api/records?count={MOST_RECORDS}",
        "api/records?start=9223372036854775807",
        "api/batch?step=281474976710656",
        "api/batch?seed=18446744073709551615",
        "api/batch?batch=65536",
        "api/order?epoch=281474976710656",
        "api/order?block=2147483648&window=2147483648",
        "api/order?block=1&window=1&lanes=256",
        "api/mix?field=1&batch=1",
        "api/where/5?epoch=281474976710656",
        "image/0/1?edge=4096",
    ],
)
def test_the_largest_values_are_answered(visitor: Visitor, path: str) -> None:
    assert visitor.get(path).status == 200


def test_an_unknown_generation_is_not_found(visitor: Visitor, store_path: Path) -> None:
    reply = visitor.get("api/about?generation=77")
    assert reply.status == 404
    assert "generation 77 does not exist" in reply.json["error"]
    assert str(store_path.parent) not in reply.json["error"]


def test_errors_name_no_place_of_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "secret place" / "x.pen"
    path.parent.mkdir()
    with pen.create(path, {"x": pen.Field("i4")}) as out:
        out.extend({"x": range(100)})
    with serving(Routes(ShownData(lambda generation: pen.open(path, io="pread"), [str(path)]))) as visitor:
        chunk = next((path / "chunk").iterdir())
        chunk.write_bytes(b"\0" * chunk.stat().st_size)
        reply = visitor.get("api/records")
    assert reply.status == 200
    assert reply.json["rows"][0]["cells"][0]["kind"] == "error"
    assert b"secret" not in reply.body
    assert str(tmp_path).encode() not in reply.body


def test_paths_become_names() -> None:
    here = str(Path("data/train.pen").absolute())
    assert without_paths(f"{here}/chunk/1.chunk: bad", ["data/train.pen"]) == "train.pen/chunk/1.chunk: bad"
    assert without_paths("/home/a b/x.npy: no", ["images=/home/a b/x.npy"]) == "x.npy: no"
    assert without_paths("see /etc/passwd, 3/4 and s3://bucket/key", []) == "see passwd, 3/4 and s3://bucket/key"


def test_nothing_unforeseen_ends_the_server() -> None:
    class Broken(pen.Source):
        fingerprint = "x"

        @property
        def schema(self) -> dict[str, pen.Field]:
            return {"x": pen.Field("i4")}

        def __len__(self) -> int:
            return 3

        def _read(self, ids: object, fields: object, out: object) -> dict[str, object]:
            raise RuntimeError("/home/somebody/secret")

        def _recipe(self) -> object:
            raise NotImplementedError

    with serving(Routes(ShownData(lambda generation: Broken(), ["x"]))) as visitor:  # type: ignore[abstract]
        reply = visitor.get("api/records")
        assert (reply.status, reply.json) == (500, {"error": "internal error: RuntimeError"})
        assert visitor.get("api/about").status == 200
