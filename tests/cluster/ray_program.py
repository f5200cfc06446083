"""Everything that is tested with Ray, in one process that starts it once: prints a JSON object of facts. Argument: a directory."""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray
from tests.cluster.engine import CURSED, SMALL, convert, convert_with_a_worker_that_dies, facts_of, source_fields
from tests.cluster.maps import FailAt
from tests.store.records import FIELDS, assert_store, columns, digest, make_records

import penstock as pen
from penstock.cluster import ray as pen_ray
from penstock.errors import NotPublishedError
from penstock.source import BatchMap


def is_hidden(path: Path) -> bool:
    """Whether nothing of a store is to be seen."""
    try:
        pen.open(path).close()
    except (NotPublishedError, FileNotFoundError):
        return True
    return False


def refusal(work: Callable[[], object]) -> str:
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def convert_with_a_task_that_raises(directory: Path) -> dict[str, Any]:
    marker, path = directory / "marker", directory / "raised.pen"
    cursed = BatchMap(FailAt(CURSED, marker), fields=source_fields(directory))
    marker.touch()
    raised = refusal(lambda: pen_ray.convert(directory / "source.pen", path, map=cursed, **SMALL))
    hidden = is_hidden(path) and is_hidden(path.with_name("raised.pen.partial"))
    pen_ray.convert(directory / "source.pen", path, map=cursed, **SMALL)
    return facts_of(path) | {"raised": raised, "hidden": hidden}


def maintain(directory: Path) -> dict[str, Any]:
    path = directory / "worn.pen"
    with pen.create(path, FIELDS, chunk_records=10) as out:
        out.extend(columns(make_records(120)))
        out.commit()
        out.delete(np.arange(0, 120, 3))
    with pen.open(path) as store:
        before = digest(store)
    executor = pen_ray.RayExecutor(num_cpus=1)
    after = pen.rebalance(path, executor=executor).after
    return {
        "same": facts_of(path)["digest"] == before,
        "utilisation": after.utilisation,
        "problems": len(pen.verify(path, executor=executor)),
    }


def read_and_write(directory: Path) -> dict[str, Any]:
    """Every kind of field through Ray Data and back, in order."""
    fields = {name: field for name, field in FIELDS.items() if name != "half"}  # Arrow has no bfloat16
    full = {"image": np.zeros((2, 3), np.uint8), "score": np.zeros(2), "boxes": np.zeros((1, 4), np.float32)}  # never missing there
    records = [{name: full.get(name) if record[name] is None else record[name] for name in fields} for record in make_records(200)]
    with pen.create(directory / "kinds.pen", fields, chunk_records=17) as out:
        out.extend({name: [record[name] for record in records] for name in fields})
    dataset = pen_ray.read(directory / "kinds.pen")
    pen_ray.write(dataset, directory / "given.pen", fields=fields)
    pen_ray.write(dataset, directory / "guessed.pen", codec={"caption": pen.Zstd(1)}, chunk_records=20)
    for name in ("given.pen", "guessed.pen"):
        with pen.open(directory / name) as store:
            assert_store(store, records)
    with pen.open(directory / "guessed.pen") as store:
        codec = repr(store.schema["caption"].codec)
    again = refusal(lambda: pen_ray.write(dataset, directory / "given.pen", fields=fields))
    return {"read_tasks": dataset.materialize().num_blocks(), "codec": codec, "again": again, **facts_of(directory / "given.pen")}


def write_what_ray_made(directory: Path) -> dict[str, Any]:
    """Map tasks that end in any order, and a failing one."""
    made = ray.data.range(2000, override_num_blocks=12).map_batches(lambda batch: {"id": batch["id"], "square": batch["id"] ** 2})
    pen_ray.write(made, directory / "made.pen")

    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        if 1000 in batch["id"]:
            raise ValueError("record 1000 is cursed")
        return batch

    raised = refusal(
        lambda: pen_ray.write(
            made.map_batches(fail), directory / "failed.pen", fields={"id": pen.Field("i8"), "square": pen.Field("i8")}
        )
    )
    hidden = is_hidden(directory / "failed.pen")
    pen_ray.write(made, directory / "failed.pen")
    empty = made.filter(lambda row: False)
    pen_ray.write(empty, directory / "empty.pen", fields={"id": pen.Field("i8"), "square": pen.Field("i8")})
    with (
        pen.open(directory / "made.pen") as store,
        pen.open(directory / "failed.pen") as second,
        pen.open(directory / "empty.pen") as none,
    ):
        ids = np.arange(2000)
        in_order = all(np.array_equal(s["id"][:], ids) and np.array_equal(s["square"][:], ids**2) for s in (store, second))
        return {"in_order": in_order, "raised": raised, "hidden": hidden, "generation": store.generation, "empty": len(none)}


def missing_tensors(directory: Path) -> dict[str, Any]:
    with pen.create(directory / "holes.pen", {"x": pen.Field("f4", (2,))}) as out:
        out.extend({"x": [[1, 2], None]})
    return {"refused": refusal(lambda: pen_ray.read(directory / "holes.pen").take_all())}


def main(directory: Path) -> dict[str, Any]:
    before = refusal(lambda: pen_ray.RayExecutor())
    with tempfile.TemporaryDirectory(prefix="r") as short:  # sockets have short names
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            _temp_dir=short,
            object_store_memory=100 << 20,
            log_to_driver=False,
            logging_level="ERROR",
        )
        ray.data.DataContext.get_current().enable_progress_bars = False
        try:
            found = {part.__name__: part(directory, pen_ray.convert) for part in (convert, convert_with_a_worker_that_dies)}
            parts = (convert_with_a_task_that_raises, maintain, read_and_write, write_what_ray_made, missing_tensors)
            return {"not_running": before} | found | {part.__name__: part(directory) for part in parts}
        finally:
            ray.shutdown()


if __name__ == "__main__":
    sys.stdout.write(f"\nFACTS {json.dumps(main(Path(sys.argv[1])))}\n")
