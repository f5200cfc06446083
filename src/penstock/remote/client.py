"""obstore, behind one seam: a client per process, and its errors told apart.

obstore keeps its threads in a global of its native module. In a forked child they do not exist, and every request would wait for
them for ever; a new client does not help. So a child loads its own copy of the native module, with globals of its own.
"""

import datetime
import importlib.machinery
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from penstock.errors import ReadError
from penstock.remote.aside import interruptible
from penstock.remote.retry import FailedError, Failure, Policy

__all__ = ["SCHEMES", "Client", "open_client"]

T = TypeVar("T")

SCHEMES = ("s3", "gs", "az", "http", "https", "memory")
"""The schemes of URLs that are object stores."""

_NATIVE = "obstore._obstore"

# Options of the HTTP client; everything else configures the store.
_CLIENT_OPTIONS = frozenset(
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

_home = os.getpid()
_lock = threading.Lock()
_loaded: tuple[int, ModuleType] | None = None


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _native() -> ModuleType:
    """obstore's native module, of this process."""
    global _loaded
    with _lock:
        if _loaded is None or _loaded[0] != os.getpid():
            inherited = _NATIVE in sys.modules and (os.getpid() != _home or not _has_threads())
            _loaded = os.getpid(), _load_copy() if inherited else _load()
        return _loaded[1]


def _has_threads() -> bool:
    """Whether the threads of some obstore run in this process: penstock may be imported only after a fork."""
    return any("tokio" in Path(f"/proc/self/task/{task}/comm").read_text() for task in os.listdir("/proc/self/task"))


def _load() -> ModuleType:
    import obstore._obstore

    return obstore._obstore


def _load_copy() -> ModuleType:
    """The native module once more: the loader takes a file of another inode for another library."""
    original = str(sys.modules[_NATIVE].__file__)
    ours = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "obstore"}
    copy = os.memfd_create("obstore", os.MFD_CLOEXEC)
    try:
        with open(original, "rb") as file:
            size, done = os.fstat(file.fileno()).st_size, 0
            while done < size:
                done += os.sendfile(copy, file.fileno(), done, size - done)
        loader = importlib.machinery.ExtensionFileLoader(_NATIVE, f"/proc/self/fd/{copy}")
        spec = importlib.util.spec_from_loader(_NATIVE, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except (OSError, ImportError) as error:
        raise ReadError(
            f"object stores cannot be read in this forked process: a second copy of obstore could not be loaded ({error}); "
            "start processes with the method 'spawn' or 'forkserver'"
        ) from error
    finally:
        os.close(copy)
        sys.modules.update(ours)
    return module


class Client:
    """A store of obstore and the native module it belongs to. What they raise becomes a FailedError.

    ``expired``: its credentials were refused as too old; a new client asks for new ones.
    ``is_quick``: its calls never wait for anybody.
    """

    def __init__(self, native: Any, store: Any, *, is_quick: bool = False) -> None:
        self._native, self._store, self._is_quick = native, store, is_quick
        self.expired = False

    def do(self, action: Callable[[], T]) -> T:
        """Do something with this client that may wait for a server. An interrupt ends the wait."""
        return action() if self._is_quick else interruptible(action)

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call a function of obstore with this store."""
        try:
            return self.do(partial(getattr(self._native, name), self._store, *arguments, **options))
        except Exception as error:
            raise self._failed(error) from None

    def items(self, stream: Any) -> Iterator[Any]:
        """What a stream of obstore gives."""
        following = partial(next, iter(stream))
        while True:
            try:
                item = self.do(following)
            except StopIteration:
                return
            except Exception as error:
                raise self._failed(error) from None
            yield item

    def _failed(self, error: Exception) -> FailedError:
        failure = _explain(error)
        self.expired = self.expired or failure.kind == "expired"
        return FailedError(failure)


def open_client(scheme: str, host: str, options: Mapping[str, Any], policy: Policy, *, write: bool = False) -> Client:
    """A new client; ValueError if obstore does not know one of the options."""
    native = _native()
    config = {name: value for name, value in options.items() if name not in _CLIENT_OPTIONS}
    client = {name: value for name, value in options.items() if name in _CLIENT_OPTIONS}
    if scheme == "http" or str(config.get("endpoint", config.get("endpoint_url", ""))).startswith("http://"):
        client.setdefault("allow_http", True)
    client |= {
        "connect_timeout": datetime.timedelta(seconds=policy.connect_s),
        "read_timeout": datetime.timedelta(seconds=policy.write_s if write else policy.read_s),
        "timeout": datetime.timedelta(days=1),  # bodies of any length: the time between two bytes is bounded instead
    }
    common: dict[str, Any] = {"client_options": client, "retry_config": {"max_retries": 0}}
    try:
        return Client(native, _store(native, scheme, host, config, common), is_quick=scheme == "memory")
    except Exception as error:
        raise ValueError(f"storage_options of {scheme}://{host} were not accepted: {_first_line(error)}") from None


def _store(native: Any, scheme: str, host: str, config: dict[str, Any], common: dict[str, Any]) -> Any:
    stores = native._store
    if scheme in ("memory", "http", "https"):
        if config:
            raise ValueError(f"unknown option {min(config)!r} (a store of this kind has no configuration)")
        return stores.MemoryStore() if scheme == "memory" else stores.HTTPStore.from_url(f"{scheme}://{host}", **common)
    provider = config.pop("credential_provider", None)
    if provider is not None:
        common["credential_provider"] = provider
    return {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}[scheme](host, config=config, **common)


_STATUS = re.compile(r"\n\s+status: (\d{3}),\n")
_KIND = re.compile(r"HttpError \{\s+kind: (\w+),")
_REQUEST_ID = re.compile(r"<RequestId>([^<>\s]{1,100})</RequestId>", re.IGNORECASE)
_CODE = re.compile(r"<Code>(\w{1,100})</Code>")
_QUERY = re.compile(r"(https?://[^\s?]*)\?\S*")
_BY_NAME = {
    "FileNotFoundError": "missing",
    "PermissionDeniedError": "denied",
    "UnauthenticatedError": "denied",
    "PreconditionError": "changed",
    "AlreadyExistsError": "exists",
    "NotImplementedError": "unsupported",
    "NotSupportedError": "unsupported",
}
_BY_STATUS = {401: "denied", 403: "denied", 404: "missing", 412: "changed", 416: "range"}
_BY_STATUS |= dict.fromkeys((408, 429, 500, 502, 503, 504), "again")
_METADATA = re.compile(r"https?://(169\.254\.169\.254|metadata\.google\.internal|metadata/)")
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired")


def _first_line(error: Exception) -> str:
    """What an error of obstore says, on one line, without the queries of URLs: they can hold signatures."""
    text = " ".join(str(error).split("Debug source:")[0].split())
    text = _QUERY.sub(r"\1?...", text)
    return text if len(text) <= 400 else f"{text[:400]}..."


def _explain(error: Exception) -> Failure:
    """What an exception of obstore means; anything else is raised again.

    The class tells little: a refused connection, a timeout and a wrong range are all a GenericError. The rest is in the description
    of the error that follows its message.
    """
    name, text = type(error).__name__, str(error)
    if not type(error).__module__.startswith("obstore") and name not in ("FileNotFoundError", "NotImplementedError"):
        raise error
    status = next((int(found) for found in _STATUS.findall(text)), None)
    request_id = next(iter(_REQUEST_ID.findall(text)), None)
    code = next(iter(_CODE.findall(text)), None)
    kind, sent = _BY_NAME.get(name), True
    if code in _EXPIRED:
        kind = "expired"
    elif _METADATA.search(text):
        kind = "credentials"  # none were given, and the machine's own service that hands them out does not answer
    elif kind == "exists" and status == 409:
        kind = "again"  # a conflict with a request under way: nobody knows yet who wins
    elif (kind == "unsupported" and "Range request not supported" in text) or "source: NotPartial" in text:
        kind = "whole"
    elif "source: StartTooLarge" in text:
        kind = "range"
    elif "source: UnexpectedRange" in text:
        kind = "wrong"
    elif kind is None and status is not None:
        kind = _BY_STATUS.get(status, "refused")
    elif kind is None and (found := _KIND.search(text)) is not None:
        kind, sent = "again", found[1] != "Connect"
    return Failure(kind or "refused", _first_line(error), status, request_id, sent)
