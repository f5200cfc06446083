"""What processes do: appends, changes, gc, rebalance, reading, two new stores at one place; and which of them at once."""

from functools import cache
from collections.abc import Mapping, Sequence

from tests.interleave.bucket import Bucket, Process, Stored, native, place_of
from tests.interleave.explore import WrongError
from tests.interleave.world import HOUR_S, KEEP_HOURS, Operation, Record, Scenario, Script, World, installed

from penstock.errors import ConflictError, MissingError, ReadError, StoreError
from penstock.schema import Field
from penstock.store import maintenance, reader, writer

FIELDS = {"x": Field("i4"), "t": Field.text()}


def columns(records: Sequence[Record]) -> Mapping[str, list[int] | list[str]]:
    return {"x": [x for x, _ in records], "t": [t for _, t in records]}


def appending(*commits: Sequence[Record]) -> Script:
    """A writer that appends, one commit after the other."""
    operations = [Operation(f"append {list(added)}", lambda records, added=added: [*records, *added]) for added in commits]

    def run(world: World, process: Process) -> None:
        try:
            out = writer.append_to(place_of(process.number), threads=1)
        except ReadError:
            if process.is_offline or world.history.collected:
                return
            raise
        try:
            for operation, added in zip(operations, commits, strict=True):
                outcome = world.begin(process, operation)
                with world.telling(process, outcome):
                    out.extend(columns(added))
                    generation = out.commit()
                    outcome.told, outcome.generation, outcome.ids = "acked", generation, out.last_range
                if outcome.told != "acked":
                    return
        finally:
            out.close()

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

    def run(world: World, process: Process) -> None:
        try:
            out = writer.append_to(place_of(process.number), threads=1)
        except ReadError:
            if process.is_offline or world.history.collected:
                return
            raise
        try:
            outcome = world.begin(process, operation)
            with world.telling(process, outcome):
                out.update([number], {"t": [text]})
                if deletes is not None:
                    out.delete([deletes])
                outcome.generation = out.commit()
                outcome.told = "acked"
        finally:
            out.close()

    return run


def creating(records: Sequence[Record]) -> Script:
    """A new store. One that is there already is refused."""
    operation = Operation(f"create with {list(records)}", lambda _: list(records))

    def run(world: World, process: Process) -> None:
        outcome = world.begin(process, operation)
        with world.telling(process, outcome):
            try:
                out = writer.create(place_of(process.number), FIELDS, chunk_records=2, threads=1)
            except StoreError as error:
                raise ConflictError(str(error)) from error
            try:
                out.extend(columns(records))
                outcome.generation = out.commit()
                outcome.told = "acked"
            finally:
                out.close()

    return run


def rebalancing(world: World, process: Process) -> None:
    """The live records into full chunks."""
    outcome = world.begin(process, Operation("rebalance", list))
    with world.telling(process, outcome, may_be_there=True):
        try:
            outcome.generation = maintenance.rebalance(place_of(process.number), threads=1).after.generation
        except MissingError:
            if not world.history.collected:
                raise
            outcome.told = "unknown"
            return
        outcome.told = "acked"


def collecting(world: World, process: Process) -> None:
    """gc, of what is older than a day."""
    try:
        maintenance.gc(place_of(process.number), keep=1, keep_hours=KEEP_HOURS)
    except (ConflictError, MissingError):
        if not world.history.collected:
            raise
    except (StoreError, ReadError):
        if not process.is_offline:
            raise


def reading(world: World, process: Process) -> None:
    """The newest generation, all of it: no older than what was acknowledged before, and what the model says."""
    least = world.history.acked()
    try:
        with reader.open_store(place_of(process.number)) as store:
            found, records = store.manifest.generation, store.contents().records
    except MissingError:
        if not world.history.collected:
            raise
        return
    except ReadError:
        if not process.is_offline:
            raise
        return
    process.notes["read"] = found, records
    if found < least and not world.is_stale:
        raise WrongError(f"a reader found generation {found}, and {least} was acknowledged before")


# The store in the beginning


@cache
def old_store() -> tuple[Mapping[str, Stored], Mapping[int, list[Record]]]:
    """Four generations, all of them old: two chunks, a redirect, and what a writer that was killed left behind."""
    bucket = Bucket({}, now=HOUR_S)
    with installed():
        native.process = Process(70, bucket)
        first, place = [(i, f"old {i}") for i in range(3)], place_of(70)
        with writer.create(place, FIELDS, chunk_records=2, threads=1) as out:
            out.extend(columns(first))
        with writer.append_to(place, threads=1) as out:
            out.update([1], {"t": ["changed"]})
        with writer.append_to(place, threads=1) as out:
            out.extend(columns([(3, "old 3")]))
        out = writer.append_to(place, threads=1)
        out.extend(columns([(8, "lost"), (9, "lost")]))
    second = [first[0], (1, "changed"), first[2]]
    return bucket.objects, {1: first, 2: second, 3: [*second, (3, "old 3")]}


def scenario(name: str, *scripts: Script, crashes: int = 1, faults: int = 1, jumps: int = 0, is_new: bool = False) -> Scenario:
    objects, model = ({}, {}) if is_new else old_store()
    return Scenario(name, scripts, objects, model, crashes, faults, jumps)


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
        scenario("append-append-append", one, two, appending([(40, "e")]), faults=0),
        scenario("append-change-gc", one, change, collecting),
        scenario("append-rebalance-gc-hours", one, rebalancing, collecting, jumps=3),
        scenario("two-writers-gc-rebalance-reader", twice, delete, collecting, rebalancing, reading, jumps=3),
    ]
    return {one.name: one for one in made}
