"""What is shown of the errors of obstore, and what reaches other hosts."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.hostile.server import Hostile, ever_more_keys, hurried
from tests.remote.double import Double

from penstock.errors import CorruptError
from penstock.remote.objects import Objects
from penstock.remote.obstore_client import NOWHERE, _no_redirects, first_line
from penstock.remote.url import url_path

KEYS = {"access_key_id": "k", "secret_access_key": "s"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET http://user:pass@host/key?sig=secret failed", "GET http://host/key?... failed"),
        ("GET http://user:p@ss:w@host:80/key failed", "GET http://host:80/key failed"),
        ("two s3+http://a@b/c and\nhttps://d@e", "two s3+http://b/c and https://e"),
        (
            "x - Server returned non-2xx status code: 403 Forbidden: <Message>key is secret",
            "x - Server returned non-2xx status code: 403 Forbidden",
        ),
        ("bad \x1b[31m text\n\nDebug source:\nsecret", "bad ?[31m text"),
    ],
)
def test_users_passwords_queries_and_texts_of_servers_are_not_shown(text: str, shown: str) -> None:
    assert first_line(text) == shown


def test_options_that_are_refused_are_not_shown() -> None:
    options = {"endpoint": "http://user:planted@host:port", "no_such_option": "planted", **KEYS}
    with pytest.raises(ValueError, match="were not accepted") as caught:
        Objects("s3", "data", options)
    assert "planted" not in str(caught.value)
    assert caught.value.__context__ is None


def test_only_the_endpoint_and_hosts_with_credentials_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    nowhere = f"http://{NOWHERE}"
    endpoint = "https://s3.example.com:9000"
    assert _no_redirects("s3", endpoint, KEYS, {}) == {"proxy_url": nowhere, "proxy_excludes": "s3.example.com"}
    assert _no_redirects("http", "http://[::1]:80", {}, {}) == {"proxy_url": nowhere, "proxy_excludes": "::1"}
    assert _no_redirects("s3", "", KEYS, {}) == {}
    assert _no_redirects("s3", endpoint, KEYS, {"proxy_url": "http://proxy"}) == {}
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "https://sts.example.com/x")
    reached = _no_redirects("s3", endpoint, {"endpoint": endpoint}, {})["proxy_excludes"].split(",")
    assert reached[0] == "s3.example.com"
    assert {"sts.example.com", "169.254.169.254", "amazonaws.com"} <= set(reached)
    monkeypatch.setenv("https_proxy", "http://proxy")
    assert _no_redirects("s3", endpoint, KEYS, {}) == {}
    monkeypatch.setenv("no_proxy", "s3.example.com")
    assert _no_redirects("s3", endpoint, KEYS, {})["proxy_excludes"] == "s3.example.com"
    assert _no_redirects("s3", endpoint, {}, {}) == {}


def test_a_listing_ends_at_its_limit_which_the_message_says_how_to_raise() -> None:
    with Hostile() as server:
        server.state.attack = ever_more_keys
        objects = hurried("s3://data/d", {"endpoint": server.base, "max_listed": 1500, "region": "r", **KEYS}).objects
        with pytest.raises(CorruptError, match=r"s3://data/d: expected at most 1500 objects .*'max_listed'"):
            objects.list("d")
        objects.close()


def test_a_listing_works_where_an_event_loop_runs(double: Double) -> None:
    double.put("d/a", b"a")
    objects = url_path("s3://data", double.storage_options).objects

    async def keys() -> list[str]:
        return [info.key for info in objects.list("d")]

    assert asyncio.run(keys()) == ["d/a"]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: asyncio.run(keys())).result() == ["d/a"]
