"""Several processes on one store, what may happen to them, and what must hold whatever happens.

What may happen: any process makes its next request; one process ends before a request, or while one is under way that lands later;
one answer is lost, with or without its request having been performed; a request is performed twice, or late; a network is away for
a while, or for good; Ctrl-C comes while a request is under way; a listing lacks its newest object; hours pass.

What must hold is compared with the list-of-dicts model of the store: see ``History``.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from tests.interleave.bucket import (
    INTERRUPT,
    LOST,
    STORE,
    Alone,
    Answer,
    Bucket,
    Process,
    Request,
    Script,
    Step,
    Stored,
    native,
    place_of,
)
from tests.interleave.explore import Action, WrongError

from penstock.errors import MissingError, PenstockError
from penstock.store import bucket, chunk, generation, maintenance, manifest, reader, writer
from penstock.store.manifest import Manifest
from penstock.store.reader import ChunkReader
from penstock.store.storage import generation_of

HOUR_S = 3600.0
KEEP_HOURS = 24.0
JUMP_S = 0.6 * KEEP_HOURS * HOUR_S
"""Hours that pass at once: one jump is less than gc keeps files for, two are more."""

CLOCK, LATE = 90, 100
"""Numbers of the actors that are no processes: the clock, and requests that land late."""
CRASH, FAULT, JUMP = 1, 2, 4
PERFORMED = ("answer lost", "performed twice", "away, performed", "gone, performed", "interrupt, performed")
"""Faults of a request that the server obeys."""
AWAY, GONE = 2, 1 << 30
"""Further requests without an answer: as many as it takes until a read is given up, and all."""

Record = tuple[int, str]


# The model


@dataclass(frozen=True, eq=False)
class Operation:
    """One transaction of a process, on the list of records: ``change`` gives the new list."""

    name: str
    change: Callable[[list[Record]], list[Record]]


@dataclass
class Outcome:
    """What a process was told: None (nothing yet), "acked", "refused" or "unknown"; and the generation and ids it got."""

    told: str | None = None
    generation: int = 0
    ids: range | None = None


@dataclass
class Landing:
    """A manifest that was created, and the objects at that moment."""

    request: Request
    objects: dict[str, Stored]


@dataclass
class History:
    """Every write to the store, checked when it happens against what must always hold, and in the end against the model."""

    base: Mapping[str, Stored]
    model: dict[int, list[Record]]
    now: Callable[[], float]
    landed: dict[int, Landing] = field(default_factory=dict)
    outcomes: dict[tuple[int, Operation], Outcome] = field(default_factory=dict)
    collected: set[int] = field(default_factory=set)
    read: list[tuple[int, list[Record]]] = field(default_factory=list)

    def acked(self) -> int:
        """The newest generation that some process was told of, or that was there before."""
        return max([o.generation for o in self.outcomes.values() if o.told == "acked"] + [*self.model, 0])

    def newest(self) -> int:
        """The newest generation that was ever created."""
        return max([*self.landed, *self.model, 0])

    def watch(self, request: Request, objects: Mapping[str, Stored]) -> None:
        """A write is about to be performed."""
        number = generation_of(request.key.rpartition("/")[2]) if "/manifest/" in request.key else None
        if request.method == "delete":
            self._removed(request.key, number, objects)
        elif number is not None:
            self._published(request, number, objects)
        elif request.key in objects and objects[request.key].data != request.data:
            raise WrongError(f"{request.key}: an object that never changes was replaced")

    def _published(self, request: Request, number: int, objects: Mapping[str, Stored]) -> None:
        if number in self.landed or number in self.model or request.key in objects:
            raise WrongError(f"generation {number} was published twice")
        if number != self.newest() + 1:
            raise WrongError(f"generation {number} was published after {self.newest()}")
        missing = named_files(request.data) - objects.keys()
        if missing:
            raise WrongError(f"generation {number} was published without {min(missing)}")
        self.landed[number] = Landing(request, dict(objects))

    def _removed(self, key: str, number: int | None, objects: Mapping[str, Stored]) -> None:
        there = {g: one.data for name, one in objects.items() if (g := _generation(name)) is not None}
        if number is None:
            users = sorted(g for g, data in there.items() if key in named_files(data))
            if users:
                raise WrongError(f"{key} was removed, and generation {users[0]} names it")
        elif number in there:
            if number != min(there) or len(there) == 1:
                raise WrongError(f"generation {number} of {sorted(there)} was removed")
            if self.now() - objects[key].modified < KEEP_HOURS * HOUR_S:
                raise WrongError(f"generation {number} was removed although it is young")
            self.collected.add(number)

    def check(self) -> None:
        """Every generation is what the model says, and every process was told the truth."""
        published: dict[tuple[int, Operation], int] = {}
        previous = self.base.get(f"{STORE}/manifest/{max(self.model, default=0):020d}.json")
        data = previous.data if previous is not None else None
        for number, landing in sorted(self.landed.items()):
            owner = landing.request.label
            if owner in published:
                raise WrongError(f"{owner[1].name} of process {owner[0]} was published as {published[owner]} and as {number}")
            published[owner] = number
            found = decoded(landing.request.data)
            if found.parent != (decoded(data).digest if data is not None else None):
                raise WrongError(f"generation {number} does not follow the one before")
            data = landing.request.data
            expected = owner[1].change(self.model.get(number - 1, []))
            self.model[number] = expected
            try:
                records = contents(landing.request.data, landing.objects).records
            except PenstockError as error:
                raise WrongError(f"generation {number} cannot be read: {error}") from error
            if records != expected:
                raise WrongError(f"generation {number} ({owner[1].name}): expected {expected}, found {records}")
        for owner, outcome in self.outcomes.items():
            self._check_outcome(owner, outcome, published.get(owner))
        for number, records in self.read:
            if records != self.model.get(number):
                raise WrongError(f"a reader of generation {number} found {records}, expected {self.model.get(number)}")

    def _check_outcome(self, owner: tuple[int, Operation], outcome: Outcome, generation: int | None) -> None:
        what = f"{owner[1].name} of process {owner[0]}"
        if outcome.told == "acked" and generation != outcome.generation:
            raise WrongError(f"{what} was acknowledged as generation {outcome.generation}, and is {generation}")
        if outcome.told == "refused" and generation is not None:
            raise WrongError(f"{what} was refused, and is generation {generation}")
        if outcome.ids is not None and generation is not None:
            before = len(self.model.get(generation - 1, []))
            if outcome.ids != range(before, len(self.model[generation])):
                raise WrongError(f"{what} was told the ids {outcome.ids}")


# What the bytes mean, by the real code, once for the same bytes


@dataclass(frozen=True)
class Contents:
    """A generation, read by the real reader from a copy on a disk."""

    records: list[Record]
    columns: Mapping[str, Any]
    stats: Any


_contents: dict[tuple[bytes, ...], Contents] = {}
_decoded: dict[bytes, Manifest] = {}
_named: dict[bytes, frozenset[str]] = {}
_decode, _encode, _read_stats, _Store = manifest.decode_manifest, manifest.encode_manifest, maintenance.stats, reader.Store
LIMIT = 20_000
"""How many results are kept of each kind."""


def decoded(data: bytes, where: str = "") -> Manifest:
    """``decode_manifest``, once for the same bytes."""
    found = _decoded.get(data)
    if found is None:
        if len(_decoded) > LIMIT:
            _decoded.clear()
        found = _decoded[data] = _decode(data, where)
    return found


def named_files(data: bytes) -> frozenset[str]:
    """The keys of the files that a manifest names."""
    found = _named.get(data)
    if found is None:
        if len(_named) > LIMIT:
            _named.clear()
        made = decoded(data)
        names = [entry.file for entry in made.chunks] + [entry.file for entry in made.redirects]
        found = _named[data] = frozenset(f"{STORE}/{name}" for name in names)
    return found


def contents(data: bytes, objects: Mapping[str, Stored]) -> Contents:
    """The records of a generation, with its files from ``objects``, where they all are."""
    files = {name: objects[name].data for name in sorted(named_files(data))}
    key = (data, *files.values())
    found = _contents.get(key)
    if found is None:
        if len(_contents) > LIMIT:
            _contents.clear()
        found = _contents[key] = _read(data, files)
    return found


def _read(data: bytes, files: Mapping[str, bytes]) -> Contents:
    made = decoded(data)
    root = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        for name, content in {f"{STORE}/manifest/{made.generation:020d}.json": data, **files}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for name in ("chunk", "redirect"):
            (root / STORE / name).mkdir(exist_ok=True)
        how = reader.Reading(1, "pread", True, 1 << 30, reader.RemoteOptions())
        with _Store(root / STORE, made, how) as store:
            batch = store[:]
            columns = store.columns(slice(0, len(store)), list(store.schema))
            records = list(zip(batch["x"].tolist(), batch["t"].to_list(), strict=True))
            return Contents(records, columns, _read_stats(store))
    finally:
        shutil.rmtree(root)


def _generation(key: str) -> int | None:
    place, _, name = key.rpartition("/")
    return generation_of(name) if place == f"{STORE}/manifest" else None


class OpenedStore:
    """What ``open_store`` gives in a process: redirects and chunks are requested one by one, and read by the real reader."""

    def __init__(self, path: Any, found: Manifest, how: Any, found_nullable: Any = None) -> None:
        self.path = self.location = path
        self.manifest, self.schema = found, found.fields
        generation.load_redirects(path, found)
        self._contents: Contents | None = None

    def __len__(self) -> int:
        return self.manifest.length

    def __enter__(self) -> "OpenedStore":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def contents(self) -> Contents:
        """All records; the error of the real reader if a chunk is gone."""
        if self._contents is None:
            storage, data = generation.storage_of(self.path), _encode(self.manifest)
            try:
                names = [entry.file for entry in (*self.manifest.chunks, *self.manifest.redirects)]
                files = {f"{STORE}/{name}": Stored(storage.read(name, 1 << 30), 0.0) for name in names}
            except MissingError as error:
                raise ChunkReader.expired(self, error) from error  # type: ignore[arg-type]
            self._contents = contents(data, files)
        return self._contents

    def columns(self, rows: slice, fields: Sequence[str]) -> Mapping[str, Any]:
        assert rows == slice(0, len(self))
        return self.contents().columns


class InlineExecutor:
    """In place of threads: a job is done when it is submitted, by the process that submits it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def submit(self, work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except BaseException as error:
            done.set_exception(error)
        return done

    def map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        return iter([work(item) for item in items])

    def shutdown(self, *, wait: bool = True) -> None:
        pass

    def __enter__(self) -> "InlineExecutor":
        return self

    def __exit__(self, *error: object) -> None:
        pass


class BucketTime:
    """The module ``time``, as gc sees it."""

    @staticmethod
    def time() -> float:
        return float(native.ask("time", ""))


def _identity() -> str:
    assert native.process is not None
    return native.process.identity()


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Inside, the store's code runs in greenlets: no threads, no clock, no chance of its own. Bytes are decoded once."""
    with contextlib.ExitStack() as stack:
        for module, name, value in (
            (chunk, "ThreadPoolExecutor", InlineExecutor),
            (bucket, "ThreadPoolExecutor", InlineExecutor),
            (chunk, "new_identity", _identity),
            (writer, "new_identity", _identity),
            (maintenance, "time", BucketTime),
            (maintenance, "stats", lambda store: store.contents().stats),
            (reader, "Store", OpenedStore),
            (generation, "decode_manifest", decoded),
            (bucket, "decode_manifest", decoded),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield


# The world


@dataclass(frozen=True)
class Scenario:
    """What processes do on a store: scripts, one for each, and how often what may happen to them.

    ``objects`` and ``model`` are the store in the beginning: its bytes, and the records of each generation. ``roots`` are the
    processes before anything was answered, which remember how they went on.
    """

    name: str
    scripts: tuple[Script, ...]
    objects: Mapping[str, Stored]
    model: Mapping[int, list[Record]]
    crashes: int = 1
    faults: int = 1
    jumps: int = 0
    first: tuple[int, ...] = ()
    """Processes whose first requests come before everything else, in this order."""
    roots: list[Step] = field(default_factory=list)
    most_known: int = 100_000
    """The steps that are remembered at most, about."""


START_S = 10 * KEEP_HOURS * HOUR_S


class World:
    """One run of a scenario."""

    num_known = 0  # steps that are remembered, in all worlds

    def __init__(self, scenario: Scenario) -> None:
        self.bucket = Bucket(dict(scenario.objects), now=START_S)
        self.history = History(scenario.objects, dict(scenario.model), lambda: self.bucket.now)
        self.bucket.watch = self.history.watch
        self._left = {CRASH: scenario.crashes, FAULT: scenario.faults, JUMP: scenario.jumps}
        self._late: list[Request | None] = []
        self._is_stale = False
        self._least: dict[int, int] = {}
        self._crossed: dict[int, int] = {}  # how often hours passed during the transaction of a process
        if not scenario.roots or World.num_known > scenario.most_known:
            World.num_known = 0
            scenario.roots[:] = [Step((), Request("start", "")) for _ in scenario.scripts]
        self._processes = [
            Process(number, script, root)
            for number, (script, root) in enumerate(zip(scenario.scripts, scenario.roots, strict=True))
        ]
        for process in self._processes:
            self._resume(process, None)
        for number in scenario.first:
            if self._processes[number].request is not None:  # fewer may be needed where the protocol is a mutant
                self._answer(self._processes[number], "go")

    def close(self) -> None:
        """End what runs."""
        for process in self._processes:
            process.close()

    def _resume(self, process: Process, answer: Answer) -> None:
        """Answer a process. What needs no scheduler is answered at once: the time, and requests of one that is offline."""
        while True:
            World.num_known += process.answer(answer)
            for words in process.step.said:
                self._hear(process, words)
            request = process.step.request
            if request is not None and request.method == "time":
                answer = self.bucket.now
            elif request is not None and process.to_lose:
                process.to_lose -= 1
                answer = LOST
            else:
                return

    def _hear(self, process: Process, words: tuple[Any, ...]) -> None:
        """What a process says."""
        history, number = self.history, process.number
        match words:
            case ("begin", operation):
                history.outcomes[number, operation] = Outcome()
                self._crossed[number] = 0
            case ("told", operation, told, *rest):
                history.outcomes[number, operation] = Outcome(told, *rest)
                self._crossed.pop(number, None)
            case ("open",):
                self._least[number] = history.acked()
            case ("read", found, records):
                history.read.append((found, records))
                if found < self._least[number] and not self._is_stale:
                    raise WrongError(f"a reader found generation {found}, and {self._least[number]} was acknowledged before")
            case ("expired", text):
                if not history.collected:
                    raise WrongError(f"process {number}: {text}")
            case ("failed", text):
                if not process.was_offline:
                    raise WrongError(f"process {number}: {text}")

    # What may happen

    def actions(self) -> list[Action]:
        """Everything that may happen next."""
        made: list[Action] = []
        for process in self._processes:
            request = process.request
            if request is not None:
                self._add_actions(process.number, request, made)
        for number, request in enumerate(self._late):
            if request is not None:
                made.append(Action(LATE + number, "lands", request.key, writes=True))
        if made and self._left[JUMP] and self._may_jump():
            made.insert(0, Action(CLOCK, "hours pass", is_global=True, budget=JUMP))
        return made

    def _add_actions(self, number: int, request: Request, made: list[Action]) -> None:
        key, writes = request.key, request.writes
        made.append(Action(number, "go", key, writes))
        if request.method == "wait":
            return
        if self._left[CRASH]:
            made.append(Action(number, "crash", budget=CRASH))
            if writes:
                made.append(Action(number, "crash, lands late", budget=CRASH))
        if self._left[FAULT]:
            if request.method == "create":
                made += [Action(number, name, key, writes, FAULT) for name in PERFORMED]
                made += [
                    Action(number, name, budget=FAULT) for name in ("request lost", "lands late", "away", "interrupt, lands late")
                ]
            elif request.method == "put":
                made += [Action(number, name, budget=FAULT) for name in ("lands late", "away", "gone")]
            elif request.method == "list" and key.endswith("/manifest/") and self.history.landed:
                made.append(Action(number, "stale", key, writes, FAULT))

    def _may_jump(self) -> bool:
        """No transaction, and no request, may last longer than gc keeps files for."""
        return not any(self._crossed.values()) and (self.bucket.now == START_S or not any(self._late))

    def perform(self, action: Action) -> None:
        """Let it happen, and everything up to the next request of the process that goes on."""
        if action.budget:
            self._left[action.budget] -= 1
        if action.actor == CLOCK:
            self.bucket.now += JUMP_S
            self._crossed = {number: times + 1 for number, times in self._crossed.items()}
        elif action.actor >= LATE:
            request, self._late[action.actor - LATE] = self._late[action.actor - LATE], None
            assert request is not None
            self.bucket.perform(request)
        else:
            self._answer(self._processes[action.actor], action.name)

    def _answer(self, process: Process, name: str) -> None:
        request = process.request
        assert request is not None
        if name.endswith("lands late"):
            self._late.append(request)
        if name.startswith("crash"):
            process.is_dead = True
            self._crossed.pop(process.number, None)
            return
        if name.startswith(("away", "gone")):
            process.was_offline, process.to_lose = True, AWAY if name.startswith("away") else GONE
        if name in PERFORMED:
            self.bucket.perform(request)
        answer = INTERRUPT if name.startswith("interrupt") else LOST
        if name in ("go", "stale", "performed twice"):
            answer = self.bucket.perform(request)
        if name == "stale":
            self._is_stale, newest = True, max(self.history.landed)
            answer = tuple(one for one in answer if _generation(one[0]) != newest)
        self._resume(process, answer)

    def finish(self) -> None:
        """All processes are done: compare with the model, and go on with the store."""
        self.history.check()
        go_on(self.bucket.objects, self.history)


# Afterwards

_gone_on: dict[object, str | None] = {}


def forget() -> None:
    """The code is another one: what it made of the same objects is not known any more."""
    _gone_on.clear()


def go_on(objects: Mapping[str, Stored], history: History) -> None:
    """A new process finds the newest generation, adds to it, and gc leaves nothing but what is named. Once for the same objects."""
    key = frozenset([(name, stored.data) for name, stored in objects.items()])
    if key not in _gone_on:
        if len(_gone_on) > LIMIT:
            _gone_on.clear()
        try:
            _gone_on[key] = None
            _add_and_collect(dict(objects), history.model.get(history.newest(), []), history.newest())
        except Exception as error:
            _gone_on[key] = f"afterwards: {type(error).__name__}: {error}"
    wrong = _gone_on[key]
    if wrong is not None:
        raise WrongError(wrong)


def _add_and_collect(objects: dict[str, Stored], records: list[Record], newest: int) -> None:
    process = Alone(80, Bucket(objects, now=100 * KEEP_HOURS * HOUR_S))
    place, added = place_of(80), (99, "afterwards")
    if newest == 0:
        return
    with reader.open_store(place) as store:
        if store.manifest.generation != newest or store.contents().records != records:
            raise WrongError(f"generation {newest} should be the newest, with {records}")
    with writer.append_to(place, threads=1) as out:
        out.extend({"x": [added[0]], "t": [added[1]]})
    maintenance.gc(place, keep=1, keep_hours=0)
    with reader.open_store(place) as store:
        if store.manifest.generation != newest + 1 or store.contents().records != [*records, added]:
            raise WrongError("a record that was added is not there")
        named = named_files(_encode(store.manifest)) | {f"{STORE}/manifest/{newest + 1:020d}.json"}
    if named != process.bucket.objects.keys():
        raise WrongError(f"gc left {sorted(process.bucket.objects.keys() ^ named)}")
