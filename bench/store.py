"""What the record store costs: reading, writing, disk and opening, beside the most the machine can do, numpy, lmdb and h5py.

::

    python bench/store.py [--json FILE] [--quick] [--dir DIR]
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import interleave, machine, progress, versions, write_json
from penstock.report.doctor import Others
from penstock.store import open_store, stats
from store_case import Fixed, Ids, Text, Trial, disk_bytes, first_touch
from store_limit import Crew
from store_report import FULL, QUICK, Result, Settings, judge_goals, text
from store_rival import INSTALL, MISSING
from store_write import measure_open, measure_write

OUT = Path(__file__).parent.parent / "out"


def measure_fixed(
    settings: Settings, case: Fixed, crews: tuple[Crew, Crew], directory: Path, report: dict[str, Any]
) -> list[Result]:
    """Everyone on one workload, taking turns."""
    began = time.perf_counter()
    progress(f"{case.name}: making {case.num_records * case.record_bytes / 1e9:.1f} GB")
    columns = case.make(directory)
    path = directory / "store"
    case.write(path, columns)
    payload, stored = case.num_records * case.record_bytes, disk_bytes(path)
    report["disk"][case.name] = {"payload": payload, "stored": stored, "overhead": stored / payload - 1}
    results = []
    rivals: dict[str, Any] = {}
    for batch in case.batches:
        ids = Ids(case.num_records, batch)
        rivals = rivals or case.rivals(directory, columns)
        readers = case.readers(*crews, columns, path, ids) | {name: _reader(rival, ids) for name, rival in rivals.items()}
        results += _take_turns(settings, case, batch, case.record_bytes, readers, case.checker(columns, ids), ids)
    if case is settings.cases[0]:
        turns = first_touch(crews[0], columns, path, Ids(case.num_records, case.batches[0]), directory)
        spreads = interleave(turns, rounds=settings.first_touch_rounds, label="first touch")
        report["first_touch"] = [{"name": name, "s_per_record": spread.to_json()} for name, spread in spreads.items()]
    for rival in rivals.values():
        rival.close()
    progress(f"{case.name}: {time.perf_counter() - began:.1f} s", lasting=True)
    return results


def measure_text(settings: Settings, crew: Crew, directory: Path, report: dict[str, Any]) -> list[Result]:
    """Compressed records of varying length, against the library alone on the same frames."""
    began, case = time.perf_counter(), Text(settings.texts, 256)
    records = case.make()
    path = directory / "store"
    case.write(path, records)
    frames = crew.encode(3, records.values, records.offsets)
    frames.encode()
    frames.keep(directory / "frames.bin")
    ids = Ids(case.num_records, case.batches[0])
    stored = stats(open_store(path)).stored_bytes
    assert stored == frames.frames.size, f"the store has {stored} bytes of frames, the bare library {frames.frames.size}"
    payload, whole = records.values.size, disk_bytes(path)
    report["disk"][case.name] = {"payload": payload, "stored": whole, "overhead": whole / payload - 1}
    report["disk"][f"{case.name}, over its frames"] = {"payload": stored, "stored": whole, "overhead": whole / stored - 1}
    mean = payload / case.num_records
    note = f"{mean:,.0f} bytes on average, {stored / payload:.0%} of that compressed; LIMIT decodes the same frames"
    report["notes"][f"{case.name}/{ids.batch}"] = note
    rivals = case.rivals(directory, records)
    readers = case.readers(crew, frames, path, ids) | {name: _text_reader(rival, ids) for name, rival in rivals.items()}
    results = _take_turns(settings, case, ids.batch, mean, readers, case.checker(records, ids), ids)
    for rival in rivals.values():
        rival.close()
    progress(f"{case.name}: {time.perf_counter() - began:.1f} s", lasting=True)
    return results


def _reader(rival: Any, ids: Ids) -> Any:
    each = ids.all()
    return lambda number: rival.read(each[number])


def _text_reader(rival: Any, ids: Ids) -> Any:
    each = ids.all()
    return lambda number: rival.read_variable(each[number])


def _take_turns(
    settings: Settings, case: Fixed | Text, batch: int, record_bytes: float, readers: dict[str, Any], check: Any, ids: Ids
) -> list[Result]:
    trials = {name: Trial(reader, ids, check, pass_s=settings.pass_s) for name, reader in readers.items()}
    spreads = interleave(trials, rounds=settings.rounds, label=f"{case.name}, batch {batch},")
    return [Result(case.name, batch, name, record_bytes, spread) for name, spread in spreads.items()]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Reading, writing, disk and opening of the record store.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, fewer turns")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where the data is written (10 GB; removed at the end)")
    options = parser.parse_args(arguments)
    settings = QUICK if options.quick else FULL
    (options.dir or OUT).mkdir(parents=True, exist_ok=True)
    began, others = time.perf_counter(), Others()
    crew, asleep = Crew(2, spins=20_000), Crew(2, spins=0)
    report: dict[str, Any] = {"machine": machine(), "versions": versions("penstock", "numpy", "lmdb", "h5py")}
    report |= {"disk": {}, "notes": {}}
    results: list[Result] = []
    for case in settings.cases:
        with _room(options.dir) as place:
            results += measure_fixed(settings, case, (crew, asleep), Path(place), report)
    with _room(options.dir) as place:
        results += measure_text(settings, crew, Path(place), report)
    with _room(options.dir) as place:
        directory = Path(place)
        report["write"] = measure_write(
            directory, crew, num_bytes=settings.write_bytes, text=Text(settings.texts, 256), rounds=settings.write_rounds
        )
        report["open"] = measure_open(directory, settings.open_lengths, virtual_chunks=settings.virtual_chunks, rounds=7)
    crew.close()
    asleep.close()
    report["reads"] = [result.to_json() for result in results]
    report["others_share"] = others.share()
    report["goals"] = judge_goals(report, results, settings)
    report["seconds"] = time.perf_counter() - began
    progress(f"took {report['seconds']:.0f} s", lasting=True)
    print("\n".join(text(report, results, settings)))
    if MISSING:
        print(f"\nnot installed: {', '.join(MISSING)}; to see them here: {INSTALL}")
    if options.json is not None:
        write_json(options.json, report)
    return 0


def _room(parent: Path | None) -> tempfile.TemporaryDirectory[str]:
    """A directory for the data of one workload, removed with everything in it."""
    return tempfile.TemporaryDirectory(prefix="store-", dir=parent or OUT)


if __name__ == "__main__":
    raise SystemExit(main())
