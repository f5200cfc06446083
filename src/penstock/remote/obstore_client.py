"""obstore behind one interface: a client per process, options that forbid redirects, and its errors classified.

obstore keeps its threads in a global of its native module. In a forked child they do not exist, and every request would hang; a new
client does not help. So a child loads its own copy of the native module, with globals of its own.
"""

import asyncio
import datetime
import importlib.machinery
import importlib.util
import os
import re
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import ReadError
from penstock.process import in_thread, interruptible
from penstock.remote.fetch import FailedError, Failure, Policy, status_failure

if TYPE_CHECKING:
    from penstock.remote.http_client import HttpClient

__all__ = ["ObstoreClient", "SignedClient", "first_line", "open_obstore"]

T = TypeVar("T")

_NATIVE = "obstore._obstore"
_WEB = ("http", "https")

_VALID = datetime.timedelta(minutes=15)
"""How long a signed URL is: as long as servers allow clocks to differ, as they do for signed headers."""

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


class ObstoreClient:
    """A store of obstore and the native module it belongs to. What they raise becomes a FailedError.

    ``expired``: its credentials were refused as too old; a new client asks for new ones.
    ``is_quick``: its calls never wait for a server.
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
            failure = self._explained(error)
        raise FailedError(failure)  # here, so that it does not keep obstore's error, which has all that a server sent

    def items(self, stream: Any) -> Iterator[Any]:
        following = partial(next, iter(stream))
        while True:
            try:
                item = self.do(following)
            except StopIteration:
                return
            except Exception as error:
                failure = self._explained(error)
                break
            yield item
        raise FailedError(failure)

    def pages(self, seconds: float, prefix: str | None, offset: str | None) -> Iterator[Any]:
        """A listing, page by page. TimeoutError if one with something on it takes longer: obstore reads empty ones without end."""
        stream = self.call("list", prefix, offset=offset, chunk_size=1000)
        if self._is_quick:
            yield from self.items(stream)
            return
        while True:
            try:
                # In a thread of its own: this one may have an event loop that runs.
                page = self.do(lambda: in_thread(partial(_next_in_time, stream, seconds)).result())
            except TimeoutError:
                raise
            except Exception as error:
                failure = self._explained(error)
                break
            if page is None:
                return
            yield page
        raise FailedError(failure)

    def close(self) -> None:
        """Connections end with the client."""

    def _explained(self, error: Exception) -> Failure:
        failure = _explain(error)
        self.expired = self.expired or failure.kind == "expired"
        return failure


class SignedClient(ObstoreClient):
    """Asks obstore to sign the URLs of ranges, which takes no request, and reads them over connections of its own, from which bytes
    go straight to their place in memory. Everything else is done by obstore; all of it where the server wants encryption (its TLS
    is as fast as Python's), a proxy or another kind of login.
    """

    def __init__(self, native: Any, store: Any, options: Mapping[str, Any], policy: Policy) -> None:
        super().__init__(native, store)
        self._options, self._policy = options, policy
        self._direct: HttpClient | None = None
        self._is_direct = True
        self._has_read = False
        """Whether obstore has read a range: what it cannot read is told in its words."""
        self._is_accepted = False
        """Whether the server has accepted a signed URL."""
        self._opening = threading.Lock()

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        asked = options.get("options") or {}
        if name != "get" or not self._is_direct or not isinstance(asked.get("range"), tuple):
            return super().call(name, *arguments, **options)
        target = self._target(arguments[0]) if self._has_read else None
        if target is not None:
            return self._get(arguments[0], asked, target)
        found = super().call(name, *arguments, **options)
        self._has_read = True
        return found

    def _target(self, key: str) -> str | None:
        """Path and query of a signed URL; None if obstore cannot sign, or is the one to read from that server."""
        try:
            url = urllib.parse.urlsplit(super().call("sign", "GET", key, _VALID))
        except FailedError:
            self._is_direct = False
            return None
        return f"{url.path}?{url.query}".removeprefix("/") if self._has_client(f"{url.scheme}://{url.netloc}") else None

    def _get(self, key: str, asked: Mapping[str, Any], target: str) -> Any:
        assert self._direct is not None
        try:
            found = self._direct.call("get", key, options=asked, target=target)
            self._is_accepted = True
            return found
        except FailedError as error:
            failure = error.failure
        self.expired = self.expired or failure.kind == "expired"
        if self._is_accepted or failure.kind not in ("denied", "refused"):
            raise FailedError(failure)
        # The server may refuse signed URLs, or want headers that only obstore sends: what it says to obstore counts.
        found = super().call("get", key, options=asked)
        self._is_direct = False
        return found

    def _has_client(self, url: str) -> bool:
        """Whether bytes are read from a server over connections of this client's own."""
        from penstock.remote.http_client import HttpClient, Origin, is_proxied

        with self._opening:
            if self._direct is None and self._is_direct:
                self._is_direct = url.startswith("http://") and not is_proxied(Origin.of(url), self._options)
                self._direct = HttpClient(url, self._options, self._policy) if self._is_direct else None
            return self._direct is not None

    def items(self, stream: Any) -> Iterator[Any]:
        from penstock.remote.http_client import Body

        return stream if isinstance(stream, Body) else super().items(stream)

    def close(self) -> None:
        """End the connections that are this client's own."""
        with self._opening:
            if self._direct is not None:
                self._direct.close()


def _next_in_time(stream: Any, seconds: float) -> Any:
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(_next(stream, seconds))


class _Loop(asyncio.SelectorEventLoop):
    """A loop that ignores what comes after its end: obstore may have an answer just when the wait for it is over."""

    def call_soon_threadsafe(self, callback: Any, *arguments: Any, context: Any = None) -> Any:  # type: ignore[override]
        with suppress(RuntimeError):  # the loop is closed
            return super().call_soon_threadsafe(callback, *arguments, context=context)
        return None


async def _next(stream: Any, seconds: float) -> Any:
    """What comes next from a stream of obstore, None at its end. Unlike a call that blocks, this one can be ended."""
    async with asyncio.timeout(seconds):
        return await anext(stream, None)


# Opening


def open_obstore(
    scheme: str, host: str, config: Mapping[str, Any], client_options: Mapping[str, Any], policy: Policy, *, write: bool
) -> ObstoreClient:
    """A new client of this process, with the deadlines of reads or of writes, from options of the store and of its HTTP client."""
    native, client = _native(), dict(client_options)
    endpoint = f"{scheme}://{host}" if scheme in _WEB else _endpoint(scheme, config)
    if endpoint.startswith("http://") and (scheme == "http" or _may_be_plain(scheme, config)):
        client.setdefault("allow_http", True)
    seconds = policy.write_s + policy.part_bytes / policy.least_bytes_per_s if write else policy.request_s
    client |= _no_redirects(scheme, endpoint, config, client) | {
        "connect_timeout": datetime.timedelta(seconds=policy.connect_s),
        "read_timeout": datetime.timedelta(seconds=policy.write_s if write else policy.read_s),
        "timeout": datetime.timedelta(seconds=seconds),  # what was read until then counts: the rest is requested again
    }
    common: dict[str, Any] = {"client_options": client, "retry_config": {"max_retries": 0}}
    store = _store(native, scheme, host, dict(config), common)
    if scheme == "s3" and not write and set(client_options) <= _DIRECT_OPTIONS:
        return SignedClient(native, store, client_options, policy)
    return ObstoreClient(native, store, is_quick=scheme == "memory")


_DIRECT_OPTIONS = frozenset({"allow_http", "default_content_type", "default_headers", "user_agent"})
"""Options of the HTTP client with which a SignedClient can do without obstore."""


def _store(native: Any, scheme: str, host: str, config: dict[str, Any], common: dict[str, Any]) -> Any:
    stores = native._store
    if scheme in ("memory", *_WEB):
        return stores.MemoryStore() if scheme == "memory" else stores.HTTPStore.from_url(f"{scheme}://{host}", **common)
    provider = config.pop("credential_provider", None)
    if provider is not None:
        common["credential_provider"] = provider
    return {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}[scheme](host, config=config, **common)


# Redirects. obstore follows them with all headers, also those with secrets, and has no option against it. But hosts that a proxy
# is for can be distinguished from those it is not for: with a proxy at an address where nothing can listen, only the server itself
# is reached.

NOWHERE = "127.0.0.1:0"
"""An address at which nothing can listen: the proxy for all hosts but the server's own, so that no redirect reaches them."""

_PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
_ENDPOINTS = (
    *("aws_endpoint_url_s3", "endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url"),
    *("base_url", "google_base_url", "azure_storage_endpoint", "azure_endpoint"),
)
_LOGINS = {
    "s3": ("amazonaws.com", "amazonaws.com.cn", "169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::254"),
    "gs": ("googleapis.com", "metadata.google.internal", "metadata", "169.254.169.254"),
    "az": ("login.microsoftonline.com", "login.microsoftonline.us", "login.chinacloudapi.cn", "169.254.169.254"),
}
"""Hosts that give out credentials, which obstore asks through the same client."""


def _endpoint(scheme: str, config: Mapping[str, Any]) -> str:
    """The URL of the server, if the options or the environment name one: otherwise it is the provider's own."""
    given = {name.lower(): value for name, value in config.items()}
    known = {name.lower(): value for name, value in os.environ.items() if name.startswith(_PREFIXES.get(scheme, "?"))}
    found = [place[name] for place in (given, known) for name in _ENDPOINTS if place.get(name)]
    return str(found[0]) if found else ""


def _may_be_plain(scheme: str, config: Mapping[str, Any]) -> bool:
    """Whether requests may go without encryption: the user wrote such an endpoint, or the environment allows it."""
    is_given = any(name.lower() in _ENDPOINTS for name in config)
    return is_given or os.environ.get(f"{_PREFIXES[scheme]}ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on", "y", "t")


def _no_redirects(scheme: str, endpoint: str, config: Mapping[str, Any], client: Mapping[str, Any]) -> dict[str, str]:
    """Options with which no host but the server's own is reached; none where the server is the provider's or a proxy is in use."""
    hosts, logs_in = [urllib.parse.urlsplit(endpoint).hostname or ""], scheme not in _WEB and not _has_keys(scheme, config)
    if not endpoint or "proxy_url" in client or _is_proxied(hosts[0], logs_in=logs_in):
        return {}
    if logs_in:
        prefix = _PREFIXES[scheme]
        named = [*config.values(), *(value for name, value in os.environ.items() if name.startswith(prefix))]
        hosts += [urllib.parse.urlsplit(url).hostname or "" for url in named if isinstance(url, str) and "://" in url]
        hosts += _LOGINS[scheme]
    return {"proxy_url": f"http://{NOWHERE}", "proxy_excludes": ",".join(filter(None, hosts))}


def _is_proxied(host: str, *, logs_in: bool) -> bool:
    """Whether the environment has a proxy for this host, or any where other hosts are asked too."""
    known = urllib.request.getproxies_environment()
    return bool(known) and (logs_in or not urllib.request.proxy_bypass_environment(host, known))  # type: ignore[attr-defined]


def _has_keys(scheme: str, config: Mapping[str, Any]) -> bool:
    """Whether credentials are given, so that no host has to be asked for them."""
    given = {name.lower().removeprefix("aws_") for name in config}
    known = {name.lower().removeprefix("aws_") for name in os.environ if name.startswith("AWS_")}
    keys = {"access_key_id", "secret_access_key"}
    return (scheme == "s3" and (keys <= given or keys <= known)) or bool(given & {"skip_signature", "credential_provider"})


# Errors

_MOST_TEXT = 100_000  # obstore describes an error with all that the server sent
_STATUS = re.compile(r"\n\s+status: (\d{3}),\n|status code: (\d{3})\b")
_KIND = re.compile(r"HttpError \{\s+kind: (\w+),")
_USER = re.compile(r"(\w+://)[^\s/]*@")
_QUERY = re.compile(r"(\w+://[^\s?]*)\?\S*")
_ANSWER = re.compile(r"(status code: \d{3}(?: [A-Z][A-Za-z -]{0,40})?).*|(error response).*")
_BY_NAME = {
    "FileNotFoundError": "missing",
    "PermissionDeniedError": "denied",
    "UnauthenticatedError": "denied",
    "PreconditionError": "changed",
    "AlreadyExistsError": "exists",
    "NotImplementedError": "unsupported",
    "NotSupportedError": "unsupported",
}
_METADATA = re.compile(r"https?://(169\.254\.169\.254|metadata\.google\.internal|metadata/)")


def first_line(text: str) -> str:
    """What an error of obstore says, on one line: without users, passwords and queries of URLs, and without the server's answer."""
    text = " ".join(text[:_MOST_TEXT].split("Debug source:")[0].split())
    text = _ANSWER.sub(r"\1\2", _QUERY.sub(r"\1?...", _USER.sub(r"\1", text)))
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= 400 else f"{text[:400]}..."


def _explain(error: Exception) -> Failure:
    """What an exception of obstore means; anything else is raised again.

    The class tells little: a refused connection, a timeout and a wrong range are all a GenericError. The rest is in the description
    of the error that follows its message.
    """
    name, whole = type(error).__name__, str(error)
    if not type(error).__module__.startswith("obstore") and name not in ("FileNotFoundError", "NotImplementedError"):
        raise error
    text = whole if len(whole) <= _MOST_TEXT else f"{whole[:_MOST_TEXT]}\n{whole[-_MOST_TEXT:]}"
    status = next((int(one or other) for one, other in _STATUS.findall(text)), None)
    by_status = status_failure(status or 0, first_line(text), text)
    kind = _kind(name, text, status)
    if kind == "redirect":
        return replace(by_status, kind=kind, text="the server redirects to another host; look at the endpoint")
    if by_status.kind == "expired":
        return by_status
    if kind is None and status is None and (found := _KIND.search(text)) is not None:
        return replace(by_status, kind="again", status=None, sent=found[1] != "Connect")
    return replace(by_status, kind=kind or by_status.kind, status=status)


def _kind(name: str, text: str, status: int | None) -> str | None:
    """The kind of a failure, unless only its status or its connection tells."""
    kind = _BY_NAME.get(name)
    if f"\n{NOWHERE},\n" in re.sub(r"\n +", "\n", text):
        return "redirect"
    if _METADATA.search(text):
        return "credentials"  # none were given, and the machine's own service that hands them out does not answer
    if kind == "exists" and status == 409:
        return "again"  # a conflict with a request under way: which one wins is not known yet
    if (kind == "unsupported" and "Range request not supported" in text) or "source: NotPartial" in text:
        return "whole"
    if "source: StartTooLarge" in text:
        return "range"
    return "wrong" if "source: UnexpectedRange" in text else kind
