"""Data sets of the Hugging Face hub, at a double of it: pinned to a commit, listed once, and with a token that nobody else sees."""

import io
import pickle
import traceback
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.remote.hub import TOKEN, Hub

import penstock as pen
from penstock.errors import AccessDeniedError, MissingError, ReadError, SourceChangedError, StoreError
from penstock.remote.objects import close_all
from penstock.remote.url import url_path

BASE = "hf://datasets/user/name"


def parquet(low: int, high: int) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"x": np.arange(low, high)}), out, row_group_size=50)
    return out.getvalue()


@pytest.fixture
def hub() -> Iterator[Hub]:
    files = {f"data/train-{number}.parquet": parquet(100 * number, 100 * number + 100) for number in range(5)}
    more = {"README.md": b"# name", "more/a b.npy": b"", "old/x.json": b"{}"}
    array = io.BytesIO()
    np.save(array, np.arange(7))
    more["more/a b.npy"] = array.getvalue()
    with Hub({"user/name": {"main": files | more, "refs/convert/parquet": {"p/0.parquet": parquet(0, 3)}}}) as hub:
        yield hub
        close_all()


def test_a_file_of_the_hub_is_read_like_any_other(hub: Hub) -> None:
    with pen.open(f"{BASE}/data/train-1.parquet", storage_options=hub.options) as data:
        assert data["x"][:].tolist() == list(range(100, 200))
    with pen.open(f"{BASE}/more/a b.npy", storage_options=hub.options) as data:
        assert data["data"][:].tolist() == list(range(7))


def test_patterns_and_prefixes_are_one_listing(hub: Hub) -> None:
    with pen.open(f"{BASE}/data/*.parquet", storage_options=hub.options) as data:
        assert len(data) == 500
        loader = pen.Loader(data.shuffle(seed=1), 50, ids="id")
        found = np.concatenate([batch["x"] for batch in loader])
    assert sorted(found.tolist()) == list(range(500))
    listed = [path for path in hub.asked if "/tree/" in path]
    assert len(listed) == 2  # pages
    with pen.open(f"{BASE}/data", storage_options=hub.options) as data:
        assert len(data) == 500


def test_the_revision_is_asked_for_once_and_what_is_read_is_of_that_commit(hub: Hub) -> None:
    with pen.open(f"{BASE}/data/train-0.parquet", storage_options=hub.options) as data:
        before, raw = data.fingerprint, pickle.dumps(data)
        hub.content["user/name"]["main"]["data/train-0.parquet"] = parquet(0, 3)  # only a push with another commit does that
        asked = [path for path in hub.asked if "/revision/" in path]
        assert asked == ["/api/datasets/user/name/revision/main"]
        assert all(Hub.commit("user/name", "main") in path for path in hub.asked if "/resolve/" in path)
    commit = Hub.commit("user/name", "main")
    with pen.open(f"{BASE}@{commit}/data/train-1.parquet", storage_options=hub.options) as pinned:
        assert len(pinned) == 100
        assert pinned.fingerprint != before
    with pytest.raises((SourceChangedError, ReadError)):
        len(pickle.loads(raw)[:]["x"])


def test_a_revision_may_be_a_branch_a_tag_or_a_reference(hub: Hub) -> None:
    with pen.open(f"{BASE}@refs%2Fconvert%2Fparquet/p/0.parquet", storage_options=hub.options) as data:
        assert data["x"][:].tolist() == [0, 1, 2]
    with pytest.raises(MissingError, match="hf://datasets/user/name@nothing/p"):
        pen.open(f"{BASE}@nothing/p/0.parquet", storage_options=hub.options)


def test_the_token_goes_to_the_hub_and_to_nobody_else(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.is_private = True
    with pytest.raises(AccessDeniedError, match=r"train-1\.parquet") as caught:
        pen.open(f"{BASE}/data/train-1.parquet", storage_options={"endpoint": hub.endpoint})
    assert TOKEN not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    with pen.open(f"{BASE}/data/train-1.parquet") as data:
        assert len(data["x"][:]) == 100
        assert TOKEN not in repr(data) + str(data.remote)
    assert hub.served
    assert all(token is None for _, token in hub.served)


def test_a_saved_token_is_found(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    hub.is_private = True
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    close_all()
    with pen.open(f"{BASE}/data/train-2.parquet", storage_options={"endpoint": hub.endpoint, "max_listed": 9}) as data:
        assert len(data) == 100


def test_every_request_has_a_signature_of_its_own(hub: Hub) -> None:
    """So that none is too old."""
    with pen.open(f"{BASE}/data/*.parquet", storage_options=hub.options) as data:
        assert len(data["x"][:]) == 500
    assert len([path for path in hub.asked if "/resolve/" in path]) == len(hub.served) > 0
    hub.refused = 1
    with pytest.raises(AccessDeniedError, match="status 403"):
        pen.open(f"{BASE}/data/train-1.parquet", storage_options=hub.options)


def test_what_is_no_data_set_is_refused(hub: Hub) -> None:
    with pytest.raises(ValueError, match="expected hf://datasets/user/name, got hf://models"):
        pen.open("hf://models/user/name/a.parquet", storage_options=hub.options)
    with pytest.raises(ReadError, match="expected hf://datasets/user/name/path"):
        pen.open("hf://datasets/squad.parquet", storage_options=hub.options)
    with pytest.raises(ValueError, match="unknown option 'region'"):
        pen.open(f"{BASE}/a.parquet", storage_options=hub.options | {"region": "x"})
    with pytest.raises(MissingError, match="there is no such object"):
        pen.open(f"{BASE}/nothing", storage_options=hub.options)
    with pytest.raises(StoreError, match="read-only"):
        pen.convert({"x": np.arange(3)}, f"{BASE}/new.pen", storage_options=hub.options)


def test_a_listing_that_never_ends_is_an_error(hub: Hub) -> None:
    commit = Hub.commit("user/name", "main")
    hub.page_link = f'<{hub.endpoint}/api/datasets/user/name/tree/{commit}?recursive=true&expand=false>; rel="next"'
    with pytest.raises(ReadError, match="the next page of a listing is the same one"):
        url_path(BASE, hub.options).objects.list("user/name")


@pytest.mark.parametrize("more", ["u:hf_secret@127.0.0.1:1", "127.0.0.1:1/hf_secret", "127.0.0.1:1?token=hf_secret"])
def test_an_endpoint_with_credentials_is_refused_and_not_shown(more: str) -> None:
    with pytest.raises(ValueError, match="endpoint: expected scheme and host of a hub") as raised:
        pen.open(f"{BASE}/data", storage_options={"endpoint": f"http://{more}"})
    assert "secret" not in "".join(traceback.format_exception(raised.value))
