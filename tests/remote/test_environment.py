"""What the environment says about object stores."""

import numpy as np
import pytest
from tests.hostile.server import Hostile, hurried, npy
from tests.remote.seaweed import Seaweed

import penstock as pen
from penstock.errors import ReadError
from penstock.remote.url import UrlPath, url_path


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"])
def test_an_endpoint_without_encryption_works_where_the_environment_allows_it(
    seaweed: Seaweed, prefix: UrlPath, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    prefix.objects.put(f"{prefix.key}/a.npy", npy(np.arange(10)))
    settings = {name: seaweed.endpoint, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    for variable, value in settings.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    unlike = {"user_agent": name}  # clients are shared by options, and environments are no part of them
    with pen.open(f"{prefix}/*.npy", storage_options=unlike) as source:
        assert source[:]["data"].tolist() == list(range(10))
    place = url_path(f"{prefix}/b", unlike)
    place.objects.put(place.key, b"written")
    assert prefix.objects.read_all(place.key, 10) == b"written"


def test_an_endpoint_without_encryption_is_refused_where_only_the_environment_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with Hostile() as server:
        for variable, value in {"ENDPOINT_URL": server.base, "ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "REGION": "r"}.items():
            monkeypatch.setenv(f"AWS_{variable}", value)
        with pytest.raises(ReadError):
            hurried("s3://data/o.npy", {"user_agent": "plain"}).objects.head("o.npy")
        assert server.state.log == []
