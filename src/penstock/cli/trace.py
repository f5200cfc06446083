"""penstock blame, replay, certify and diff: from a loss to its records, the batch itself, and proof of what a run was given."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from penstock.batch import Ragged, only
from penstock.cli.explain import SampleReader, TokenizerFile, has_known_documents, samples_of, step_number
from penstock.cli.options import (
    AsJson,
    OrderOptions,
    Pipeline,
    Storage,
    data_first,
    examples,
    is_function,
    make_loader,
    need_loader,
    open_data,
    takes_order,
)
from penstock.cli.record import MOST_LETTERS, value_as_json
from penstock.cli.terminal import Code, clip, console, facts, number, print_json, safe, say, table
from penstock.errors import PenstockError
from penstock.loader import Loader
from penstock.report import Figure, Picture, Section, Table, Tile, write_page
from penstock.report.formatting import command_line, noun, percent
from penstock.report.page import COLOURS, Part, need_plots, tidy
from penstock.stream.ban_file import Ban, BanFile
from penstock.system import is_directory, is_file, names_in, writing
from penstock.tokenizer import TextTokenizer, load_tokenizer
from penstock.trace import (
    Blame,
    Certificate,
    LossTable,
    Run,
    StepBlame,
    Suspect,
    blame_run,
    blame_step,
    certify_run,
    compare,
)
from penstock.trace import (
    certify as certify_loader,
)
from penstock.trace.blame import SPIKE_Z, SUSPECT_Z, Level
from penstock.trace.loss_log import parse_name
from penstock.trace.loss_table import is_missing
from penstock.trace.recipe import by_stream, has_calls
from penstock.trace.run import global_place
from penstock.view.guard import RefusedError
from penstock.view.records import make_image

RunPath = Annotated[str, typer.Argument(metavar="RUN", help="The directory that penstock.LossLog wrote.")]
Of = Annotated[
    list[str] | None,
    typer.Option(
        "--of",
        metavar="DATA|MODULE:FUNCTION",
        help="The data of the run, or a function that returns its loader. Without order options, the order of the log is used, if "
        "it has one. NAME=DATA is the data of one stream of a mixture.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Open the paths and URLs that the log of the run names. Do not use it with the run of a stranger."
    ),
]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML page.")]
Most = Annotated[int, typer.Option(min=1, help="Number of records to list.")]

MOST_SHOWN = 64
PICTURE_EDGE = 512


def is_run(path: str) -> bool:
    return is_directory(path) and any(parse_name(name) is not None for name in names_in(path))


def open_run(path: str, of: list[str] | None, order: OrderOptions, storage: Sequence[str] | None, trust: bool) -> Run:
    found = LossTable.open(path)
    if found.damaged:
        say(f"note: {number(found.damaged)} {noun(found.damaged, 'block')} of losses did not have the checksum, and are left out")
    if of is None:
        if order != OrderOptions():
            raise typer.BadParameter("order options need the data: pass it with --of", param_hint="--of")
        return Run(found, trust=trust)
    told, _ = found.made_by
    if (len(of) == 1 and is_function(of[0])) or order != OrderOptions() or not has_calls(told):
        return Run(found, need_loader(make_loader(of, order, 1, storage)))
    if not isinstance(told["calls"], dict):
        return Run(found, data=open_data(of, storage=storage))
    if not all("=" in word for word in of):
        raise typer.BadParameter("the run has a mixture: pass the data of each of its streams, as NAME=DATA", param_hint="--of")
    words = dict(word.split("=", 1) for word in of)
    return Run(found, data=by_stream({name: open_data([word], storage=storage) for name, word in words.items()}))


# blame


@takes_order
@examples(
    "penstock blame runs/a --trust",
    "penstock blame runs/a --of train.pen",
    "penstock blame runs/a 1003 --of train:make_loader",
    "penstock blame runs/a --of train.pen --seed 7 --html blame.html",
    "penstock blame runs/a --of train:make_loader --ban",
    "penstock blame runs/a --of train:make_loader --ban-file bans.json",
)
def blame(
    run: RunPath,
    order: OrderOptions,
    step: Annotated[str | None, typer.Argument(metavar="STEP", help="Only this step. Default: the whole run.")] = None,
    of: Of = None,
    trust: Trust = False,
    most: Most = 20,
    ban: Annotated[bool, typer.Option("--ban", help="Print the call that bans the suspects.")] = False,
    ban_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write, or add to, a ban file, which stream.without(FILE) reads.")
    ] = None,
    from_step: Annotated[int | None, typer.Option(min=0, help="The first step of the bans. Default: after the last step.")] = None,
    html: Html = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Find loss spikes and the records that caused them: unusual losses, their steps and streams."""
    if html is not None:
        need_plots()
    found = open_run(run, of, order, storage, trust)
    level = Level(found.table)
    if step is None:
        of_run = blame_run(found, most=most)
        result: Blame | StepBlame = of_run
        suspects = list(of_run.suspects)
    else:
        if not step.isdecimal():
            raise typer.BadParameter(f"expected the number of a step, from 0, got {step!r}", param_hint="STEP")
        result = of_step = blame_step(found, int(step), most=most, level=level)
        suspects = list({one.key: one for one, visit in of_step.visits if visit.z >= SUSPECT_Z}.values())
    if as_json:
        print_json(_as_json(result))
    elif isinstance(result, Blame):
        _show_run(found, result)
    else:
        _show_step(result)
    if html is not None:
        options = {**({} if of is None else {"of": " ".join(of)}), **order.given()}
        words = [run] if step is None else [run, step]
        page = write_page(
            html, _sections(found, level, result), title=f"blame: {run}", command=command_line("blame", words, options)
        )
        say(f"wrote {page}")
    if ban or ban_file is not None:
        _ban(found, suspects, int(found.table.steps[-1]) + 1 if from_step is None else from_step, ban_file, as_json=as_json)


def _as_json(result: Blame | StepBlame) -> dict[str, Any]:
    if isinstance(result, Blame):
        return {
            "steps": result.steps,
            "losses": result.losses,
            "spikes": list(result.spikes),
            "suspects": [_suspect_json(one) for one in result.suspects],
            "sources": list(result.sources),
            "skipped": list(result.skipped),
        }
    visits = [{**_suspect_json(one, visits=False), "visit": visit} for one, visit in result.visits]
    return {"spike": result.spike, "records": visits, "sources": list(result.sources)}


def _suspect_json(one: Suspect, *, visits: bool = True) -> dict[str, Any]:
    told = {"source": one.source, "id": one.id, "score": one.score, "times": one.times, "num_visits": len(one.visits)}
    return {**told, "visits": list(one.visits)} if visits else told


def _name(one: Suspect) -> str:
    return f"{one.source}:{one.id}" if one.source else str(one.id)


def _figure(value: float | None) -> str:
    return "" if value is None else "not a number" if math.isnan(value) else number(value)


SPIKES = ("step", "loss", "level", "z")
SUSPECTS = ("record", "score", "times", "visits", "worst step", "loss", "excess", "z", "share")
SHARES = ("record", "share", "loss", "excess", "z", "z of visits", "times", "visits")
SOURCES = ("stream", "of records", "of the excess")


def _spike_rows(result: Blame) -> list[list[str]]:
    return [[number(one.step), _figure(one.mean), _figure(one.level), _figure(one.z)] for one in result.spikes]


def _suspect_rows(suspects: Sequence[Suspect]) -> list[list[str]]:
    rows = []
    for one in suspects:
        worst = one.visits[0]
        counts = [_figure(one.score), number(one.times), number(len(one.visits)), number(worst.step)]
        rows.append([_name(one), *counts, _figure(worst.loss), _figure(worst.excess), _figure(worst.z), percent(worst.share)])
    return rows


def _share_rows(result: StepBlame) -> list[list[str]]:
    return [
        [
            _name(one),
            percent(visit.share),
            _figure(visit.loss),
            _figure(visit.excess),
            _figure(visit.z),
            _figure(visit.z_visits),
            number(one.times),
            number(len(one.visits)),
        ]
        for one, visit in result.visits
    ]


def _source_rows(result: Blame | StepBlame) -> list[list[str]]:
    return [[one.source, percent(one.share_of_records), percent(one.share_of_excess)] for one in result.sources]


def _show_run(run: Run, result: Blame) -> None:
    out = console()
    out.print(facts("run", {"steps": number(result.steps), "losses": number(result.losses), "spikes": number(len(result.spikes))}))
    if result.skipped:
        say(f"note: the losses of {len(result.skipped)} steps do not fit the order, and are left out: {result.skipped[:5]}")
    if result.spikes:
        out.print()
        out.print(table(SPIKES, _spike_rows(result), right=SPIKES))
    if result.suspects:
        out.print()
        out.print(table(SUSPECTS, _suspect_rows(result.suspects), right=SUSPECTS[1:]))
    else:
        say("no record has losses that are out of the ordinary")
    if len(run.sources) > 1:
        out.print()
        out.print(table(SOURCES, _source_rows(result), right=SOURCES[1:]))


def _show_step(result: StepBlame) -> None:
    out, spike = console(), result.spike
    rows = {"loss": _figure(spike.mean), "level": _figure(spike.level), "z": _figure(spike.z)}
    if spike.not_finite:
        rows["not finite"] = number(spike.not_finite)
    out.print(facts(f"step {spike.step}", rows))
    out.print()
    out.print(table(SHARES, _share_rows(result), right=SHARES[1:]))
    if len(result.sources) > 1:
        out.print()
        out.print(table(SOURCES, _source_rows(result), right=SOURCES[1:]))


def _sections(run: Run, level: Level, result: Blame | StepBlame) -> list[Section]:
    curve = _curve(level)
    if isinstance(result, StepBlame):
        spike = result.spike
        tiles = [Tile("loss", _figure(spike.mean)), Tile("level", _figure(spike.level)), Tile("z", _figure(spike.z))]
        sections = [Section(f"Step {spike.step}", tiles=tiles, parts=[Table(SHARES, _share_rows(result), SHARES[1:])])]
    else:
        counts = {"steps": result.steps, "losses": result.losses, "spikes": len(result.spikes)}
        tiles = [Tile(name, number(value)) for name, value in counts.items()]
        parts: list[Part] = [curve]
        if result.spikes:
            parts.append(Table(SPIKES, _spike_rows(result), SPIKES))
        suspects: list[Part] = ["There are none."]
        if result.suspects:
            suspects = [Table(SUSPECTS, _suspect_rows(result.suspects), SUSPECTS[1:])]
        sections = [
            Section("Loss", tiles=tiles, parts=parts),
            Section("Suspects", "Records whose losses are out of the ordinary, the highest score first.", parts=suspects),
        ]
    if len(run.sources) > 1:
        sections.append(Section("Streams", parts=[Table(SOURCES, _source_rows(result), SOURCES[1:])]))
    return sections


def _curve(level: Level) -> Figure:
    steps, mean = level.table.steps, level.table.mean
    stride = max(1, len(steps) // 2000)
    spikes = level.step_z >= SPIKE_Z

    def draw(canvas: Any, narrow: bool) -> None:
        axes = canvas.add_subplot()
        axes.plot(steps[::stride], mean[::stride], color=COLOURS["grid"][0], linewidth=1)
        axes.plot(steps[::stride], level.at[::stride], color=COLOURS["blue"][0], linewidth=1.5)
        is_drawn = spikes & np.isfinite(mean)
        axes.plot(steps[is_drawn], mean[is_drawn], "o", color=COLOURS["red"][0], markersize=3)
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        tidy(axes, grid="y")

    return Figure("loss", "Mean loss of every step", "The level is the running median; points are spikes.", draw)


def _ban(run: Run, suspects: Sequence[Suspect], from_step: int, path: Path | None, *, as_json: bool) -> None:
    chosen = [one for one in suspects if run.knows_documents(one.key.source)]
    if not chosen:
        say("there is no record to ban")
        return
    by_stream: dict[tuple[str, ...], list[int]] = {}
    for one in chosen:
        names, key = [], run.key(one.key)
        while isinstance(key, tuple):
            names.append(key[0])
            key = key[1]
        by_stream.setdefault(tuple(names), []).append(int(key))
    bans = [Ban(names, from_step, tuple(sorted(set(ids)))) for names, ids in by_stream.items()]
    if path is not None:
        BanFile.of(run.given.stream, bans).save(path)
        say(f"wrote {path}: stream.without({str(path)!r}) reads it")
    elif as_json:
        say(_without(bans))
    else:
        typer.echo(safe(_without(bans)))


def _without(bans: Sequence[Ban]) -> str:
    """The call that bans these."""
    calls = []
    for ban in bans:
        ids: Any = list(ban.ids)
        for name in reversed(ban.stream):
            ids = {name: ids}
        calls.append(f".without({ids!r}, from_step={ban.from_step})")
    return f"stream{''.join(calls)}"


# replay


@takes_order
@examples(
    "penstock replay runs/a 1003 --of train:make_loader --html batch.html",
    "penstock replay train.pen 1003 --batch-size 256 --seed 7 --npz batch.npz",
    "penstock replay train:make_loader 12 --tokenizer tokenizer.json --html batch.html",
)
def replay(
    data: Pipeline,
    step: Annotated[str, typer.Argument(metavar="STEP", help="The number of the batch, from 0.")],
    order: OrderOptions,
    of: Of = None,
    trust: Trust = False,
    html: Html = None,
    npz: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the arrays of the batch.")] = None,
    tokenizer: TokenizerFile = None,
    most: Annotated[int, typer.Option(min=1, help="Number of samples to show.")] = MOST_SHOWN,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Make the exact global batch of a step again: read, decoded, transformed; with its losses, if DATA is a run."""
    data, step = data_first(data, step, "STEP", example="penstock replay runs/a 1000")
    wanted, made = step_number(step), None if tokenizer is None else load_tokenizer(tokenizer)
    losses: list[list[float | None]] | None = None
    if len(data) == 1 and is_run(data[0]):
        run = open_run(data[0], of, order, storage, trust)
        loader, losses, batch = run.loader_at(wanted), _losses_of(run, wanted), run.batch(wanted)
    elif of is not None or trust:
        raise typer.BadParameter("it needs the directory of a run", param_hint="--of" if of is not None else "--trust")
    else:
        loader = need_loader(make_loader(data, order, 1, storage))
        batch = loader.work.make(global_place(loader, wanted))
    place = global_place(loader, wanted)
    fields = batch if isinstance(batch, Mapping) else {"batch": batch}
    if npz is not None:
        _write_npz(npz, fields)
    if html is not None:
        sections = _batch_sections(loader, wanted, fields, losses, made, most)
        options = {**({} if of is None else {"of": " ".join(of)}), **order.given()}
        say(f"wrote {write_page(html, sections, title=f'step {wanted}', command=command_line('replay', [*data, step], options))}")
    told = {name: _described(value) for name, value in fields.items()}
    if as_json:
        print_json({"step": wanted, "epoch": place.epoch, "samples": place.num_samples, "fields": told, "losses": losses})
        return
    out = console()
    out.print(facts(f"step {wanted}", {"epoch": number(place.epoch), "samples": number(place.num_samples)}))
    out.print()
    out.print(table(("field", "what"), list(told.items())))


def _losses_of(run: Run, step: int) -> list[list[float | None]]:
    """The losses of every sample: one, or those of its documents. None where one is not known."""
    visits = run.visits(step)
    found: list[list[float | None]] = [[] for _ in range(int(visits.sample.max(initial=-1)) + 1)]
    for sample, loss, missing in zip(visits.sample.tolist(), visits.loss.tolist(), is_missing(visits.loss).tolist(), strict=True):
        found[sample].append(None if missing else loss)
    return [row[:1] for row in found] if run.table.stretch(step).per == "sample" else found


def _described(value: Any) -> str:
    if isinstance(value, Ragged):
        return f"{value.kind}, {len(value)} values"
    array = np.asarray(value)
    return f"{array.dtype} {list(array.shape)}"


def _write_npz(path: Path, fields: Mapping[str, Any]) -> None:
    arrays: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Ragged):
            parts = {"values": value.values, "offsets": value.offsets, "shapes": value.shapes, "present": value.present}
            arrays |= {f"{name}.{part}": array for part, array in parts.items() if array is not None}
        elif isinstance(value, np.ma.MaskedArray):
            arrays |= {name: value.data, f"{name}.mask": np.ma.getmaskarray(value)}
        else:
            array = np.asarray(value)
            if array.dtype.hasobject:
                raise typer.BadParameter(f"field {name!r} is no array of numbers that a .npz file can hold", param_hint="--npz")
            arrays[name] = array
    data = io.BytesIO()
    np.savez_compressed(data, **arrays)
    with writing(path, "writing"):
        path.write_bytes(data.getvalue())
    say(f"wrote {path}")


def _batch_sections(
    loader: Loader,
    step: int,
    fields: Mapping[str, Any],
    losses: Sequence[Sequence[float | None]] | None,
    tokenizer: TextTokenizer | None,
    most: int,
) -> list[Section]:
    samples = list(samples_of(loader.explain(step, documents=has_known_documents(loader.stream))))
    reader = SampleReader(loader.stream, tokenizer, None, MOST_LETTERS, MOST_SHOWN)
    sections = []
    for place, sample in enumerate(samples[:most]):
        rows: list[list[str]] = []
        pictures: list[Picture] = []
        for name, value in fields.items():
            if len(value) <= place:
                continue
            one = _value_at(value, place)
            picture = _picture(name, one)
            if picture is not None:
                pictures.append(picture)
            rows.append([name, clip(str(value_as_json(one)), MOST_LETTERS)])
        lead = ""
        if losses is not None and place < len(losses):
            lead = "loss " + ", ".join("not known" if one is None else f"{one:.4g}" for one in losses[place])
        parts: list[Part] = [*pictures, Table(("field", "value"), rows)]
        if sample.id is None and (tokenizer is not None or not _needs_tokenizer(loader)):
            pieces = [[one.what, f"{one.low}-{one.high}", one.text] for one in reader.pieces(sample)]
            parts.append(Table(("document", "from-to", "text"), pieces))
        sections.append(Section(f"Sample {place}: {clip(str(sample), 200)}", lead, parts=parts))
    left = len(samples) - most
    if left > 0:
        sections.append(Section(f"and {number(left)} samples more", "--most shows more of them."))
    return sections


def _needs_tokenizer(loader: Loader) -> bool:
    """Whether tokens of sequences become text only by a tokenizer."""
    for part in loader.stream.parts:
        documents = getattr(part, "documents", None) if getattr(part, "has_documents", True) else None
        if part.has_sequences and (documents is None or documents.has_tokens):
            return True
    return False


def _value_at(column: Any, place: int) -> Any:
    if isinstance(column, Ragged):
        return only(column[place : place + 1])
    array = column if isinstance(column, np.ma.MaskedArray) else np.asarray(column)
    return only(array[place : place + 1])


def _picture(name: str, value: Any) -> Picture | None:
    """A value as a picture, if it is one."""
    if isinstance(value, np.ndarray) and value.ndim == 3 and value.dtype.kind == "f":  # decoded, as floats: made visible again
        low, high = float(np.nanmin(value, initial=0)), float(np.nanmax(value, initial=0))
        value = ((value - low) * (255 / max(high - low, 1e-12))).clip(0, 255).astype(np.uint8)
    try:
        made = make_image(value, PICTURE_EDGE)
    except (PenstockError, RefusedError):
        return None
    return Picture(made.kind, made.body, name)


# certify and diff


@takes_order
@examples(
    "penstock certify runs/a --of train:make_loader --out a.json",
    "penstock certify runs/a --of train.pen --seed 7 --records --out a.json",
    "penstock certify --of train:make_loader --steps 1000 --out plan.json",
)
def certify(
    order: OrderOptions,
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="The directory that penstock.LossLog wrote; not needed with --steps.")
    ] = None,
    of: Of = None,
    trust: Trust = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Without RUN: certify this many steps.")] = None,
    records: Annotated[bool, typer.Option("--records", help="Read all records, and add their digests.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the certificate, as JSON.")] = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Compute a digest of the batches of a run. It is the same on any number of ranks."""
    if (run is None) == (steps is None):
        raise typer.BadParameter("expected either RUN, or --of and --steps", param_hint="RUN")
    if run is not None:
        made = certify_run(open_run(run, of, order, storage, trust), records=records)
    elif of is None:
        raise typer.BadParameter("--steps needs the data, or a function that returns the loader", param_hint="--of")
    else:
        made = certify_loader(need_loader(make_loader(of, order, 1, storage)), range(steps or 0), records=records)
    if out is not None:
        made.save(out)
        say(f"wrote {out}")
    if as_json:
        told = made.as_json()
        print_json(told if out is None else {"chain": made.chain, "num_steps": len(made.steps), "steps": told["steps"]})
        return
    rows = {"chain": made.chain, "steps": number(len(made.steps)), "first": number(made.steps[0]), "last": number(made.steps[-1])}
    if made.partial:
        rows["not of all ranks"] = number(len(made.partial))
    console().print(facts("certificate", rows))


@examples(
    "penstock diff a.json b.json",
    "penstock diff runs/a runs/b --trust",
    "penstock diff runs/a plan.json --json",
)
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A certificate, or a RUN whose log says how to open the data.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Name the first step at which the batches of two runs differ, and why. Exit code 1 if they differ."""
    found = compare(_certificate(a, trust=trust), _certificate(b, trust=trust))
    if as_json:
        print_json(
            {"is_same": found.is_same, "step": found.step, "common_steps": found.common_steps, "reasons": list(found.reasons)}
        )
    elif found.is_same:
        console().print(facts("the same", {"steps": number(found.common_steps)}))
    else:
        first = "not known" if found.step is None else number(found.step)
        console().print(facts("different", {"first step": first, "steps of both": number(found.common_steps)}))
        console().print()
        console().print(table(("what", "A", "B"), [(one.kind, one.a, one.b) for one in found.reasons]))
    if not found.is_same:
        raise typer.Exit(Code.FOUND)


def _certificate(path: str, *, trust: bool) -> Certificate:
    return Certificate.load(path) if is_file(path) else certify_run(Run.open(path, trust=trust))
