"""Places in object stores."""

import os
import pickle
import subprocess
import sys

import pytest

from penstock.errors import UnsafePathError
from penstock.remote.url import UrlPath, is_url, url_path

SECRET = "s-e-c-r-e-t"


@pytest.mark.parametrize(
    "url", ["s3://b/k", "hf://datasets/x/y", "gs://b", "az://c/k", "http://h/k", "https://h:80/k", "memory://", "memory://x/y"]
)
def test_urls_of_object_stores(url: str) -> None:
    assert is_url(url)


@pytest.mark.parametrize("text", ["file:///a", "a/b", "/a/b", "C:/a", "s3:/b/k", "", "ftp://h/k", "s3", "hf:/datasets/x"])
def test_other_texts(text: str) -> None:
    assert not is_url(text)
    with pytest.raises(ValueError, match="expected a URL of an object store"):
        url_path(text)


def test_parts_of_a_path() -> None:
    path = url_path("memory://bucket/some/dir/train.tar.npy")
    assert path.key == "some/dir/train.tar.npy"
    assert (path.name, path.stem, path.suffix) == ("train.tar.npy", "train.tar", ".npy")
    assert str(path) == "memory://bucket/some/dir/train.tar.npy"
    assert repr(path) == "UrlPath('memory://bucket/some/dir/train.tar.npy')"
    assert path.parent == url_path("memory://bucket/some/dir/")
    assert path.with_name("x") == path.parent / "x"
    assert path.parent.parent.parent == url_path("memory://bucket") == url_path("memory://bucket").parent
    assert str(url_path("memory://bucket")) == "memory://bucket"
    assert url_path("memory://bucket") / "a" / "b/c" == url_path("memory://bucket/a/b/c")
    hidden = url_path("memory://bucket/.hidden")
    assert (hidden.stem, hidden.suffix) == (".hidden", "")
    assert not isinstance(path, os.PathLike)


def test_equal_means_the_same_place_and_the_same_options() -> None:
    options = {"region": "a", "access_key_id": "k", "secret_access_key": SECRET}
    one, same = url_path("s3://b/k", options), url_path("s3://b/k", dict(reversed(options.items())))
    other = url_path("s3://b/k", options | {"region": "b"})
    assert one == same
    assert hash(one) == hash(same)
    assert one.objects is same.objects is (one.parent / "x").objects
    assert one != other
    assert one.objects is not other.objects
    assert len({one, same, other}) == 2
    assert one != "s3://b/k"


def test_a_pickled_path_is_the_same_path() -> None:
    path = url_path("s3://b/k", {"region": "a", "access_key_id": "k", "secret_access_key": SECRET, "default_headers": {"x": "y"}})
    again = pickle.loads(pickle.dumps(path))
    assert again == path
    assert again.objects is path.objects


def test_a_path_cannot_be_changed() -> None:
    path = url_path("memory://b/k")
    with pytest.raises(AttributeError, match="cannot be changed"):
        path.key = "other"
    with pytest.raises(AttributeError, match="cannot be changed"):
        del path.key


@pytest.mark.parametrize("key", ["..", "a/../b", "./a", "a/.", "a//b", "/a", "a\nb", "a\x00b", "a\x7f", "a/../../b"])
def test_o06_keys_that_lead_elsewhere_are_refused(key: str) -> None:
    base = url_path("memory://b")
    with pytest.raises(UnsafePathError, match="expected"):
        base / key
    with pytest.raises(UnsafePathError, match="expected"):
        url_path(f"memory://b/{key}")
    with pytest.raises(UnsafePathError, match="expected"):
        (base / "x").with_name(key)


def test_an_escaped_way_out_of_a_web_server_is_refused() -> None:
    with pytest.raises(UnsafePathError, match=r"\.\."):
        url_path("http://127.0.0.1/a/%2e%2e/b")


def test_a_web_address_is_unescaped_once_and_escaped_once() -> None:
    path = url_path("http://127.0.0.1/a%20b/50%25%3F.npy")
    assert path.key == "a b/50%?.npy"
    assert str(path) == "http://127.0.0.1/a%20b/50%25%3F.npy"
    assert url_path(str(path)) == path


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://", "expected a bucket"),
        ("https:///x", "expected a host"),
        (f"https://user:{SECRET}@host/x", "no credentials in the URL"),
        (f"https://host/x?sig={SECRET}", "without a query"),
        (f"ftp://user:{SECRET}@host/x?{SECRET}", "expected a URL of an object store"),
    ],
)
def test_bad_urls_are_refused_without_repeating_secrets(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        url_path(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://b/k", "gs://b/k", "az://b/k", "http://127.0.0.1/k", "memory://b/k"])
def test_unknown_options_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"storage_options of .* were not accepted: .*bogus"):
        url_path(url, {"bogus": "1"})


def test_values_of_a_wrong_type_are_refused() -> None:
    with pytest.raises(ValueError, match="storage_options of s3://b were not accepted"):
        url_path("s3://b/k", {"region": 3})


def test_nothing_shows_secrets() -> None:
    path = url_path("s3://b/k", {"access_key_id": "k", "secret_access_key": SECRET, "region": "x"})
    assert SECRET not in repr(path) + str(path) + repr(path.objects) + str(path.objects)


def test_every_scheme_has_a_client() -> None:
    key = {
        "access_key_id": "k",
        "secret_access_key": "s",
        "endpoint_url": "http://127.0.0.1:1",
        "virtual_hosted_style_request": False,
    }
    assert isinstance(url_path("s3://b", key), UrlPath)
    assert isinstance(url_path("gs://b", {"skip_signature": True}), UrlPath)
    assert isinstance(url_path("az://b", {"account_name": "a", "account_key": "c2VjcmV0"}), UrlPath)
    assert isinstance(url_path("https://h", {"user_agent": "test"}), UrlPath)


def test_importing_penstock_does_not_import_obstore() -> None:
    program = "import sys, penstock, penstock.remote.url; print(sorted(m for m in sys.modules if m.startswith('obstore')))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
