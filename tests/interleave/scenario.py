"""What processes do: appends, changes, gc, rebalance, reading, two new stores at one place; and which of them at once."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial

from tests.interleave.bucket import Alone, Bucket, Runner, Script, Stored, place_of
from tests.interleave.world import HOUR_S, KEEP_HOURS, Operation, Record, Scenario, installed

from penstock.errors import ConflictError, DurabilityError, MissingError, PenstockError, StoreError
from penstock.schema import Field
from penstock.store import maintenance, reader, writer

FIELDS = {"x": Field("i4"), "t": Field.text()}


def columns(records: Sequence[Record]) -> Mapping[str, list[int] | list[str]]:
    return {"x": [x for x, _ in records], "t": [t for _, t in records]}


@contextlib.contextmanager
def telling(process: Runner) -> Iterator[None]:
    """What a process says of its errors: "expired" is right only after gc, "failed" only without a network."""
    try:
        yield
    except MissingError as error:
        process.say("expired", f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        pass
    except Exception as error:
        process.say("failed", f"{type(error).__name__}: {error}")


@contextlib.contextmanager
def transaction(process: Runner, operation: Operation, *, may_be_there: bool = False) -> Iterator[None]:
    """One operation, and what the process is told by exceptions: ``may_be_there`` if others than DurabilityError may come after the
    commit.
    """
    process.label = (process.number, operation)
    process.say("begin", operation)
    try:
        yield
    except ConflictError:
        process.say("told", operation, "refused")
    except (DurabilityError, KeyboardInterrupt):
        process.say("told", operation, "unknown")
    except PenstockError as error:
        process.say("told", operation, "unknown" if may_be_there else "refused")
        process.say("expired" if isinstance(error, MissingError) else "failed", f"{type(error).__name__}: {error}")


def appending(*commits: Sequence[Record], waits: bool = False) -> Script:
    """A writer that appends, one commit after the other; it may wait, without a transaction, before the first."""
    operations = [Operation(f"append {list(added)}", lambda records, added=added: [*records, *added]) for added in commits]

    def run(process: Runner) -> None:
        with telling(process), contextlib.closing(writer.append_to(place_of(process.number), threads=1)) as out:
            if waits:
                process.wait()
            for operation, added in zip(operations, commits, strict=True):
                with transaction(process, operation):
                    out.extend(columns(added))
                    generation = out.commit()
                    process.say("told", operation, "acked", generation, out.last_range)

    return run


def changing(number: int, text: str, *, deletes: int | None = None) -> Script:
    """A writer that replaces the text of a record, and may delete another one, in one commit."""

    def change(records: list[Record]) -> list[Record]:
        made = list(records)
        made[number] = (made[number][0], text)
        if deletes is not None:
            last = made.pop()
            if deletes < len(made):
                made[deletes] = last
        return made

    operation = Operation(f"change {number} to {text}, delete {deletes}", change)

    def run(process: Runner) -> None:
        opened = partial(writer.append_to, place_of(process.number), threads=1)
        with telling(process), contextlib.closing(opened()) as out, transaction(process, operation):
            out.update([number], {"t": [text]})
            if deletes is not None:
                out.delete([deletes])
            process.say("told", operation, "acked", out.commit())

    return run


def creating(records: Sequence[Record]) -> Script:
    """A new store. One that is there already is refused."""
    operation = Operation(f"create with {list(records)}", lambda _: list(records))

    def run(process: Runner) -> None:
        with transaction(process, operation):
            try:
                out = writer.create(place_of(process.number), FIELDS, chunk_records=2, threads=1)
            except StoreError as error:
                raise ConflictError(str(error)) from error
            with contextlib.closing(out):
                out.extend(columns(records))
                process.say("told", operation, "acked", out.commit())

    return run


REBALANCE = Operation("rebalance", list)


def rebalancing(process: Runner) -> None:
    """The live records into full chunks."""
    with transaction(process, REBALANCE, may_be_there=True):
        done = maintenance.rebalance(place_of(process.number), threads=1)
        process.say("told", REBALANCE, "acked", done.after.generation)


def collecting(process: Runner) -> None:
    """gc, of what is older than a day."""
    with telling(process):
        try:
            maintenance.gc(place_of(process.number), keep=1, keep_hours=KEEP_HOURS)
        except ConflictError as error:
            process.say("expired", str(error))


def reading(process: Runner) -> None:
    """The newest generation, all of it: no older than what was acknowledged before, and what the model says."""
    process.say("open")
    with telling(process), reader.open_store(place_of(process.number)) as store:
        process.say("read", store.manifest.generation, store.contents().records)


# The store in the beginning


@cache
def old_store() -> tuple[Mapping[str, Stored], Mapping[int, list[Record]]]:
    """Three generations, all of them old, of which the last names nothing of the first; and what a killed writer left behind."""
    bucket = Bucket({}, now=HOUR_S)
    with installed():
        Alone(70, bucket)
        first, place = [(i, f"old {i}") for i in range(3)], place_of(70)
        with writer.create(place, FIELDS, chunk_records=4, threads=1) as out:
            out.extend(columns(first))
        maintenance.rebalance(place, threads=1)
        with writer.append_to(place, threads=1) as out:
            out.update([1], {"t": ["changed"]})
        out = writer.append_to(place, threads=1)
        out.extend(columns([(8, "lost")] * 4))
    return bucket.objects, {1: first, 2: first, 3: [first[0], (1, "changed"), first[2]]}


def scenario(
    name: str,
    *scripts: Script,
    crashes: int = 1,
    faults: int = 1,
    jumps: int = 0,
    is_new: bool = False,
    first: tuple[int, ...] = (),
) -> Scenario:
    objects, model = ({}, {}) if is_new else old_store()
    return Scenario(name, scripts, objects, model, crashes, faults, jumps, first)


LARGE = ("append-change-gc", "append-rebalance-gc-hours", "two-writers-gc-rebalance-reader")
"""Scenarios that have too many schedules to run all of them."""


@cache
def scenarios() -> Mapping[str, Scenario]:
    """By name: those that are explored as a whole first, then those that have too many schedules."""
    one, two = appending([(10, "a")]), appending([(20, "b"), (21, "b")])
    twice = appending([(30, "c")], [(31, "d")])
    change, delete = changing(1, "new"), changing(0, "newer", deletes=2)
    made = [
        scenario("create-create", creating([(1, "a")]), creating([(2, "b")]), is_new=True),
        scenario("append-append", one, two),
        scenario("append-change", one, change),
        scenario("change-delete", change, delete),
        scenario("append-rebalance", one, rebalancing),
        scenario("change-rebalance", change, rebalancing),
        scenario("append-read", one, reading),
        scenario("rebalance-read", rebalancing, reading),
        scenario("append-gc", one, collecting),
        scenario("change-gc", change, collecting),
        scenario("rebalance-gc", rebalancing, collecting),
        scenario("gc-gc", collecting, collecting),
        scenario("gc-read", collecting, reading),
        scenario("append-gc-hours", one, collecting, faults=0, jumps=2),
        scenario("twice-gc-hours", twice, collecting, crashes=0, faults=0, jumps=2),
        scenario("append-gc-hours-stale", one, collecting, crashes=0, jumps=2, first=(0,) * 8),
        scenario(
            "idle-twice-gc-hours",
            twice,
            collecting,
            appending([(10, "a")], waits=True),
            crashes=0,
            faults=0,
            jumps=2,
            first=(2,) * 4 + (0,) * 12,
        ),
        scenario("append-append-append", one, two, appending([(40, "e")]), faults=0),
        scenario("append-change-gc", one, change, collecting),
        scenario("append-rebalance-gc-hours", one, rebalancing, collecting, jumps=3),
        scenario("two-writers-gc-rebalance-reader", twice, delete, collecting, rebalancing, reading, jumps=3),
    ]
    return {one.name: one for one in made}
