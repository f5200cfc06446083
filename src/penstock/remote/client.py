"""The clients of one bucket or host: options checked, opened when first needed, and again after a fork."""

import os
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from penstock.remote.http_client import HttpClient
from penstock.remote.obstore_client import ObstoreClient, first_line, open_obstore
from penstock.remote.retry import Policy

__all__ = ["SCHEMES", "AnyClient", "Clients", "open_client"]

SCHEMES = ("s3", "gs", "az", "http", "https", "memory")
"""The schemes of URLs that are object stores."""

_WEB = ("http", "https")

OUR_OPTIONS = frozenset({"allow_redirects", "max_listed"})
"""Storage options that are penstock's own."""

CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "default_content_type",
        "default_headers",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "root_certificate",
        "user_agent",
    }
)
"""Storage options of an HTTP client; everything else configures the store."""

AnyClient = ObstoreClient | HttpClient

_inherited: list[object] = []  # clients of a parent process: to free one would end connections of the parent


class Clients:
    """One client for reading, and one for writing: their deadlines differ."""

    def __init__(self, scheme: str, host: str, options: Mapping[str, Any]) -> None:
        self.scheme, self.host, self.options = scheme, host, MappingProxyType(dict(options))
        self._clients: dict[bool, tuple[int, Policy, AnyClient]] = {}
        self._lock = threading.Lock()

    def client(self, policy: Policy, *, write: bool = False) -> AnyClient:
        """The client of this process; ValueError if the options are not accepted."""
        write = write and self.scheme != "memory"
        known = self._known(policy, write)
        if known is not None:
            return known
        with self._lock:
            known = self._known(policy, write)
            if known is None:
                self._drop(write)
                known = open_client(self.scheme, self.host, self.options, policy, write=write)
                self._clients[write] = os.getpid(), policy, known
            return known

    def _known(self, policy: Policy, write: bool) -> AnyClient | None:
        pid, made_for, client = self._clients.get(write, (0, policy, None))
        # The bytes of a memory store are in its client: it lasts as long as the process, and stays after a fork.
        fits = self.scheme == "memory" or (pid == os.getpid() and made_for is policy)
        return client if client is not None and fits and not client.expired else None

    def close(self) -> None:
        """End connections; the next request makes new ones. A memory store stays."""
        with self._lock:
            if self.scheme != "memory":
                for write in list(self._clients):
                    self._drop(write)

    def _drop(self, write: bool) -> None:
        old = self._clients.pop(write, None)
        if old is not None and old[0] == os.getpid():
            old[2].close()
        elif old is not None:
            _inherited.append(old)

    def after_fork(self) -> None:
        """Forget a lock that a thread of the parent may hold."""
        self._lock = threading.Lock()


def open_client(scheme: str, host: str, options: Mapping[str, Any], policy: Policy, *, write: bool = False) -> AnyClient:
    """A new client; ValueError if one of the options is unknown or has a bad value."""
    try:
        _check_ours(scheme, options)
        config = {name: value for name, value in options.items() if name not in OUR_OPTIONS | CLIENT_OPTIONS}
        if config and scheme in ("memory", *_WEB):
            raise ValueError(f"unknown option {min(config)!r} (a store of this kind has no configuration)")
        if scheme in _WEB and not write:
            return HttpClient(f"{scheme}://{host}", options, policy)
        client_options = {name: value for name, value in options.items() if name in CLIENT_OPTIONS}
        return open_obstore(scheme, host, config, client_options, policy, write=write)
    except Exception as error:
        refused = f"storage_options of {scheme}://{host} were not accepted: {first_line(str(error))}"
    raise ValueError(refused)


def _check_ours(scheme: str, options: Mapping[str, Any]) -> None:
    redirects, listed = options.get("allow_redirects", False), options.get("max_listed", 1)
    if not isinstance(redirects, bool) or (redirects and scheme not in _WEB):
        raise ValueError("expected allow_redirects to be a bool, and True only for http:// and https://")
    if not isinstance(listed, int) or isinstance(listed, bool) or listed < 1:
        raise ValueError(f"expected max_listed to be a whole number of at least 1, got {ascii(listed)[:100]}")
