"""Disk: what may be there after a power cut, given the system calls before it.

The model is weak on purpose. Bytes written and names changed are separate events, and each of them may be on the disk or not, in
any combination, until an fsync covers it: one of the file covers its bytes, one of the directory covers the names in it. A write
may also be torn. Only these are atomic: one name made, removed or replaced.
"""

import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.crash.trace import FOREIGN, Call, marks

Tree = dict[str, bytes | None]
"""What is on a disk: the bytes of a file by its path, None for a directory. Paths are relative to the parent of the store."""

TORN = ("half", "zero", "half-zero", "garbage")
LAST_WRITES = 4
SUBSETS = 20


@dataclass(frozen=True)
class Write:
    """Bytes of a file. ``None`` is a cut to length ``offset``."""

    inode: int
    offset: int
    data: bytes | None


@dataclass(frozen=True)
class Rename:
    """Names of directories that now mean other inodes, or nothing: all of them at once."""

    names: tuple[tuple[int, str, int | None], ...]


Event = Write | Rename


@dataclass(frozen=True)
class Moment:
    """A place in the trace: the events so far that no fsync covers, and the commits acknowledged and started."""

    happened: int
    pending: tuple[int, ...]
    acked: int
    started: int


class Disk:
    """Replays the calls of a trace. Everything under ``root`` in ``before`` is durable from the start."""

    def __init__(self, root: str, before: Mapping[str, bytes | None] | None = None) -> None:
        self._root = root
        self.events: list[Event] = []
        self._directories = {0}
        self._tree: dict[tuple[int, str], int] = {}  # as the running process sees it
        self._next = 1
        self._finished: dict[int, int] = {}  # event -> place in the trace where its call returned
        self._durable: set[int] = set()
        for path in sorted(before or {}):
            self._add_initial(path, (before or {})[path])

    # Replaying

    def replay(self, calls: list[Call]) -> Iterator[Moment]:
        """Yield the moments at which the machine may stop: before the first call, and after every start and every fsync."""
        acked = started = 0
        yield self._moment(acked, started)
        timeline = sorted(
            [(call.start, 0, call) for call in calls]
            + [(call.end, 1, call) for call in calls if call.end is not None and call.name in ("fsync", "fdatasync")],
            key=lambda item: item[:2],
        )
        for _, is_end, call in timeline:
            if is_end:
                self._sync(call)
            else:
                self._apply(call)
                for word, number in marks(call):
                    acked, started = (number, started) if word == "ACK" else (acked, number)
            yield self._moment(acked, started)

    def _moment(self, acked: int, started: int) -> Moment:
        pending = tuple(i for i in range(len(self.events)) if i not in self._durable)
        return Moment(len(self.events), pending, acked, started)

    def _inside(self, path: str) -> str | None:
        """The part of a path below the root; None for one outside it."""
        if path == self._root:
            return ""
        return path[len(self._root) + 1 :] if path.startswith(self._root + "/") else None

    def _apply(self, call: Call) -> None:
        if call.name in FOREIGN:
            self._refuse_on_store(call)
        elif call.result < 0 or call.name in ("fsync", "fdatasync"):
            return
        elif call.name in ("pwrite64", "write", "ftruncate"):
            self._apply_write(call)
        elif call.name == "openat":
            self._apply_open(call)
        else:
            self._apply_names(call)

    def _refuse_on_store(self, call: Call) -> None:
        flags = " ".join(a for a in call.arguments if isinstance(a, str))
        if call.name == "mmap" and not ("PROT_WRITE" in flags and "MAP_SHARED" in flags):
            return
        texts = [a.decode(errors="replace") for a in call.arguments if isinstance(a, bytes)]
        if any(self._inside(path) is not None for path in [*call.paths.values(), *texts]):
            raise AssertionError(f"the store was changed by {call.name}, which the protocol does not use: {call}")

    def _apply_write(self, call: Call) -> None:
        path = self._inside(call.paths.get(0, ""))
        if path is None:
            return
        inode = self._find(path)
        if call.name == "write":
            raise AssertionError(f"{path}: written by write; the protocol uses pwrite only")
        if call.name == "ftruncate":
            self._add(Write(inode, int(str(call.arguments[1])), None), call)
            return
        data = call.arguments[1]
        assert isinstance(data, bytes), call
        self._add(Write(inode, int(str(call.arguments[3])), data[: call.result]), call)

    def _apply_open(self, call: Call) -> None:
        path, flags = self._inside(call.target(1)), str(call.arguments[2])
        if path is None:
            return
        directory, name = self._parent(path) if path else (0, "")
        if "O_CREAT" in flags and (directory, name) not in self._tree:
            self._name(call, (directory, name, self._make()))
        elif "O_TRUNC" in flags:
            self._add(Write(self._find(path), 0, None), call)

    def _apply_names(self, call: Call) -> None:
        texts = [i for i, argument in enumerate(call.arguments) if isinstance(argument, bytes)]
        paths = [self._inside(call.target(i)) for i in texts]
        if all(path is None for path in paths):
            return
        assert None not in paths, f"a name moved in or out of the store: {call}"
        places = [self._parent(path) for path in paths if path is not None]
        if call.name.startswith("mkdir"):
            self._name(call, (*places[0], self._make(directory=True)))
        elif call.name.startswith("unlink"):
            self._name(call, (*places[0], None))
        elif call.name.startswith("link"):
            self._name(call, (*places[1], self._tree[places[0]]))
        else:
            self._name(call, (*places[0], None), (*places[1], self._tree[places[0]]))

    def _name(self, call: Call, *names: tuple[int, str, int | None]) -> None:
        for directory, name, inode in names:
            if inode is None:
                del self._tree[directory, name]
            else:
                self._tree[directory, name] = inode
        self._add(Rename(names), call)

    def _add(self, event: Event, call: Call) -> None:
        if call.end is not None:
            self._finished[len(self.events)] = call.end
        self.events.append(event)

    def _sync(self, call: Call) -> None:
        """An fsync that returned covers what had returned before it began."""
        path = self._inside(call.paths.get(0, ""))
        if path is None or call.result != 0:
            return
        inode = self._find(path)
        for i, event in enumerate(self.events):
            if self._finished.get(i, call.start) < call.start and inode in _homes(event):
                self._durable.add(i)

    def _make(self, directory: bool = False) -> int:
        inode, self._next = self._next, self._next + 1
        if directory:
            self._directories.add(inode)
        return inode

    def _parent(self, path: str) -> tuple[int, str]:
        above, _, name = path.rpartition("/")
        return self._find(above), name

    def _find(self, path: str) -> int:
        inode = 0
        for name in path.split("/") if path else []:
            inode = self._tree[inode, name]
        return inode

    def _add_initial(self, path: str, data: bytes | None) -> None:
        directory, name = self._parent(path)
        inode = self._make(directory=data is None)
        self._tree[directory, name] = inode
        self._durable |= {len(self.events), len(self.events) + 1}
        self.events += [Rename(((directory, name, inode),)), Write(inode, 0, data or b"")]

    @property
    def directories(self) -> set[int]:
        """The inodes that are directories."""
        return self._directories


def _homes(event: Event) -> set[int]:
    """The inodes whose fsync covers an event."""
    return {event.inode} if isinstance(event, Write) else {directory for directory, _, _ in event.names}


Choice = tuple[frozenset[int], tuple[int, str] | None]
"""The pending events that reached the disk, and one of them that was torn, and how."""


def choices(disk: Disk, moment: Moment, rng: random.Random, subsets: int = SUBSETS) -> Iterator[Choice]:
    """The combinations tried at a moment: all, none, all but one, one alone, torn last writes, and some by lot."""
    everything = frozenset(moment.pending)
    yield everything, None
    yield frozenset(), None
    for event in moment.pending:
        yield everything - {event}, None
        yield frozenset({event}), None
    writes = [i for i in moment.pending if isinstance(disk.events[i], Write)]
    for event in writes[-LAST_WRITES:]:
        for kind in TORN:
            yield everything, (event, kind)
    for _ in range(subsets if len(moment.pending) > 2 else 0):
        yield frozenset(event for event in moment.pending if rng.random() < 0.5), None


class Materials:
    """Puts trees together from events, and remembers the contents it has met."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._digests: dict[tuple[tuple[int, str], ...], bytes] = {}
        self._contents: dict[bytes, bytes] = {}
        self._names: dict[tuple[int, str], list[tuple[int, int | None]]] = {}
        self._writes: dict[int, list[int]] = {}
        self._indexed = 0
        self._moment: Moment | None = None

    def tree(self, moment: Moment, choice: Choice) -> dict[str, bytes | None]:
        """The paths that can be reached, with a digest of the bytes for files and None for directories."""
        if moment is not self._moment:
            self._settle(moment)
        kept, torn = choice
        lost = set(moment.pending) - kept
        entries = {directory: dict(names) for directory, names in self._settled_names.items()}
        for (directory, name), changes in self._open_names.items():
            inode = next((inode for event, inode in reversed(changes) if event not in lost), None)
            if inode is not None:
                entries.setdefault(directory, {})[name] = inode
        found: dict[str, bytes | None] = {}
        todo = [("", 0)]
        while todo:
            path, directory = todo.pop()
            for name, inode in entries.get(directory, {}).items():
                here = f"{path}/{name}" if path else name
                if inode in self._disk.directories:
                    found[here] = None
                    todo.append((here, inode))
                else:
                    found[here] = self._settled_digests.get(inode) or self._digest(inode, lost, torn)
        return found

    def content(self, digest: bytes) -> bytes:
        """The bytes of a digest in a tree made before."""
        return self._contents[digest]

    def _settle(self, moment: Moment) -> None:
        """Work out what no choice can change at a moment. Moments come in the order of the trace."""
        for i in range(self._indexed, moment.happened):
            event = self._disk.events[i]
            if isinstance(event, Write):
                self._writes.setdefault(event.inode, []).append(i)
            else:
                for directory, name, inode in event.names:
                    self._names.setdefault((directory, name), []).append((i, inode))
        self._indexed, self._moment = moment.happened, moment
        pending = set(moment.pending)
        self._open_names = {key: c for key, c in self._names.items() if any(event in pending for event, _ in c)}
        self._settled_names: dict[int, dict[str, int]] = {}
        for (directory, name), changes in self._names.items():
            if (directory, name) not in self._open_names and (last := changes[-1][1]) is not None:
                self._settled_names.setdefault(directory, {})[name] = last
        self._settled_digests = {
            inode: self._digest(inode, set(), None) for inode, writes in self._writes.items() if pending.isdisjoint(writes)
        }

    def _digest(self, inode: int, lost: set[int], torn: tuple[int, str] | None) -> bytes:
        recipe = tuple(
            (i, torn[1] if torn is not None and torn[0] == i else "") for i in self._writes.get(inode, ()) if i not in lost
        )
        if recipe not in self._digests:
            data = _content([(self._disk.events[i], kind) for i, kind in recipe])
            self._digests[recipe] = hashlib.blake2b(data, digest_size=16).digest()
            self._contents[self._digests[recipe]] = data
        return self._digests[recipe]


def _content(writes: list[tuple[Event, str]]) -> bytes:
    out = bytearray()
    for event, kind in writes:
        assert isinstance(event, Write)
        if event.data is None:
            del out[event.offset :]
            continue
        data = _torn(event.data, kind)
        end = event.offset + len(data)
        out.extend(bytes(max(0, end - len(out))))
        out[event.offset : end] = data
    return bytes(out)


def _torn(data: bytes, kind: str) -> bytes:
    half = len(data) // 2
    if kind == "half":
        return data[:half]
    if kind == "zero":
        return bytes(len(data))
    if kind == "half-zero":
        return data[:half] + bytes(len(data) - half)
    if kind == "garbage":
        return random.Random(len(data)).randbytes(len(data))
    return data
