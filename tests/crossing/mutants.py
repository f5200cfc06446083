"""Does the crossing test notice? Every mutant takes one mend out of the library; the cases must find each of them.

    python -m tests.crossing.mutants [--cases 6000] [--jobs 2]

prints after how many cases each was found. Ends with 1 if one was not.
"""

import argparse
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

HANGS_S = 60  # seconds after which a case counts as one that hangs


def edit(place: str, old: str, new: str) -> Callable[[], None]:
    """Change the source of a function, given as "module:Class.function" or "module:function"."""

    def apply() -> None:
        module_name, _, path = place.partition(":")
        module = import_module(f"penstock.{module_name}")
        owner: Any = module
        *outer, name = path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        found = inspect.getattr_static(owner, name)
        function = found.fget if isinstance(found, property) else getattr(found, "func", found)
        text = textwrap.dedent(inspect.getsource(function))
        if text.count(old) != 1:
            raise LookupError(f"{place} has {text.count(old)} places that read {old!r}: the mutant is out of date")
        scope = dict(vars(module))
        exec(compile(text.replace(old, new), f"<mutant of {place}>", "exec"), scope)
        made = scope[name]
        if owner is module:
            _replace_everywhere(getattr(module, name), made)
        else:
            setattr(owner, name, made)
            if hasattr(made, "__set_name__"):
                made.__set_name__(owner, name)

    return apply


def _replace_everywhere(old: Any, new: Any) -> None:
    """In every module that has imported it by name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("penstock"):
            for key, value in list(vars(module).items()):
                if value is old:
                    setattr(module, key, new)


def _mutants() -> Iterator[tuple[str, Callable[[], None]]]:
    yield (
        "bans before .sequences are lost",
        edit("stream.sequence:SequenceStream.__init__", "Bans(bans), version", "Bans(()), version"),
    )
    yield (
        "bans behind .sequences are lost",
        edit(
            "stream.sequence:SequenceStream.without",
            "bans = self._bans.with_ids(ids, from_step, len(self._source))",
            "bans = self._bans",
        ),
    )
    yield (
        "bans of documents that separators end are of token blocks",
        edit("stream.sequence:SequenceStream.without", "not self.documents.are_records", "False"),
    )
    yield (
        "bans in a mixture are lost",
        edit("stream.mixed:MixedStream.without", "streams[name] = stream.without(", "stream.without("),
    )
    yield "bans begin a step late", edit("stream.stream:Bans.at", "step >= from_step", "step > from_step")
    yield (
        "bans that begin later are not noticed",
        edit("stream.stream:Bans.at", "recent is None or recent[0] != active", "recent is None"),
    )
    yield (
        "a second ban on a stream replaces the first",
        edit("stream.stream:Bans.with_ids", "Bans((*self, (", "Bans((*self[:0], ("),
    )
    yield (
        "left-over tokens of banned records still come",
        edit("stream.sequence:SequenceStream._moved", "is_in(target, banned)", "(is_in(target, banned) & full)"),
    )
    yield (
        "other documents are cut at the end",
        edit("stream.sequence:DocumentStream._instead", "_part(drawn, total - count, count)", "_part(drawn, 0, count)"),
    )
    yield (
        "other documents of another epoch",
        edit("stream.sequence:DocumentStream._replaced", "key = epoch, int(", "key = 0, int("),
    )
    yield (
        "blocks of token files are taken for documents",
        edit("formats.token_line:TokenSource.has_documents", "isinstance(self._pieces, Documents)", "True"),
    )
    yield (
        "left-overs of streams whose weight is 0",
        edit("order.layout:_lay_rest", "if weight else 0", "if True else 0"),
    )
    yield (
        "segments are joined where pages meet",
        edit("stream.sequence:SequenceStream._breaks", "ends[:-1][apart]", "ends[:-1][apart][:0]"),
    )
    yield (
        "segments are joined where documents meet",
        edit("stream.sequence:DocumentStream._breaks", "np.cumsum(picks.counts)[:-1]", "np.cumsum(picks.counts)[:0]"),
    )
    yield (
        "pages of the block size",
        edit(
            "stream.sequence:SequenceStream._lay", "page = line.block_size if is_old else self._seq_len", "page = line.block_size"
        ),
    )
    yield (
        "blocks of pages are as many as blocks of records",
        edit("stream.sequence:_page_order", "* block_size // max(1, page)", "* 1"),
    )
    yield (
        "documents are not shuffled",
        edit(
            "stream.sequence:DocumentStream._lay",
            "self._line.num_tokens, order\n",
            "self._line.num_tokens, Sequential(len(order))\n",
        ),
    )
    yield (
        "a sequence goes on in the same epoch",
        edit("stream.sequence:SequenceStream._locate_across", "epoch + 1, 0, left - count", "epoch, 0, left - count"),
    )
    yield (
        "phases have pages of their own",
        edit("stream.sequence:SequenceStream._remade", ', "page": self._page}', "}"),
    )
    yield (
        "bans behind sequences in order keep pages of blocks",
        edit("stream.sequence:SequenceStream.without", "page=self._asked", "page=self._page"),
    )
    yield (
        "weights by step start over in every epoch",
        edit("order.layout:make_runs", "if count is None or is_last:", "if True:"),
    )
    yield (
        "the clock of weights by step counts dropped batches",
        edit("order.mixture:Mixture._clock", 'if self.tail == "drop" else', 'if self.tail == "none" else'),
    )
    yield (
        "streams of a mixture start over in every epoch",
        edit("order.mixture:Mixture.given_before", "had + (epoch - run.first) * given", "0 * had + 0 * given"),
    )
    yield (
        "whole batches lose records",
        edit("order.layout:_lay_rest", "if any(counts):", "if False:"),
    )
    yield (
        "the batch size of a mixture is not compared",
        edit("stream.mixed:MixedStream.for_batches", "size is not None and size != batch_size", "False"),
    )
    yield (
        "a mixture by step resumes with any batch size",
        edit("stream.mixed:MixedStream.plan", "if not self.needs_steps or self._phases is not None:", "if True:"),
    )
    yield "ids of several streams collide", edit("stream.picks:sources_of", "if not isinstance(picks, MixedPicks):", "if True:")
    yield (
        "streams in a mixture within are not counted",
        edit("stream.picks:sources_of", "np.cumsum(picks.widths)", "np.arange(1, len(picks.widths) + 1)"),
    )
    yield (
        "a mixture stays in an epoch of its streams natively",
        edit("stream.mixed:MixedStream.native_order", "(order, own_epoch * length, length)", "(order, 0, 2**62)"),
    )
    yield (
        "slices of lists begin at the first record",
        edit("row_table:ChosenRows.table", "base + chosen.start * step", "base"),
    )
    yield (
        "the batch type depends on missing values",
        edit("records:typed", "if name in nullable:\n                batch[name]", "if False:\n                batch[name]"),
    )
    yield (
        "texts depend on missing values",
        edit("records:typed", "if column.present is None:", "if False:"),
    )
    yield (
        "a mixture is nullable as its first stream",
        edit("stream.mixed:MixedStream.schema", "any(s[name].nullable for s in schemas)", "schemas[0][name].nullable"),
    )
    yield "restart does not rewind", edit("loader.loader:Loader.rewind", "if self._restart:", "if False:")
    yield (
        "skipped counts tries",
        edit("loader.make_batch:Work._refill", "np.count_nonzero(ids_of(picks) != wanted)", "len(unreadable.ids)"),
    )
    yield "a transform may give None", edit("loader.make_batch:Work.finish", "if made is None:", "if False:")
    yield (
        "the epoch after a resume that drops the rest",
        edit("loader.schedule:EpochSchedule.epoch_at", "return self.place(step).epoch", "return epoch"),
    )
    yield (
        "epochs shorter than a batch are dropped in silence",
        edit("loader.schedule:make_schedule", "schedule.stream.axis > 0 and schedule.total == 0", "False"),
    )
    yield (
        "an endless mixture has a length",
        edit("loader.loader:Loader.__len__", "self._phases is None and self.stream.endless_epoch == self.epoch", "False"),
    )
    yield (
        "where names steps at which a record is banned",
        edit("stream.stream:RecordStream.holds", "return bool(", "return True or bool("),
    )
    yield (
        "bans before .pack are lost",
        edit("stream.pack:PackStream.__init__", "Bans(bans), bounds", "Bans(()), bounds"),
    )
    yield (
        "bans behind .pack are lost",
        edit("stream.pack:PackStream._remade", '"bans": self._bans', '"bans": ()'),
    )
    yield (
        "packs are in phases as if the length had not changed",
        edit("stream.pack:_same_place", "int(other.edges(epoch)[group])", "place"),
    )
    yield (
        "packs of a mixture are completed as those of the first",
        edit("stream.pack:PackStream.completion", "self._added.tobytes(), options.first_segment,", "0,"),
    )
    yield (
        "packs of a mixture change their length in phases",
        edit("stream.pack:PackStream.sized", "seq_len != self._options.length and self._phases is None", "False"),
    )
    yield (
        "packs that begin with an added token have the same id",
        edit("stream.picks:SpanPicks.ids", "self.starts[after], -2", "-2, -2"),
    )
    yield (
        "blocks of packs are those of another order",
        edit("stream.pack:PackStream._block", "self._given.block * documents", "documents"),
    )
    yield (
        "labels have the mask of their own token",
        edit("stream.pack:_apply_mask", "mask[1:] != 0", "mask[:-1] != 0"),
    )
    yield (
        "added tokens do not count",
        edit("stream.pack:_apply_mask", "picks.starts[added] == EOS", "picks.starts[added] == 0"),
    )
    yield (
        "labels do not follow the mask unless it is delivered",
        edit("stream.pack:PackStream.__init__", '{LOSS_MASK, "labels"}', "{LOSS_MASK}"),
    )
    yield (
        "separators do not count",
        edit(
            "stream.sequence:mask_of",
            "return MaskLine(source, line)\n",
            "made = MaskLine(source, line); made._separator[:] = 0; return made\n",
        ),
    )
    yield (
        "documents of token files are not told apart",
        edit("stream.sequence:SequenceStream._breaks", "if self._bounds is None:", "if True:"),
    )
    yield (
        "lanes of packs are ignored",
        edit("stream.pack:PackStream.__init__", "isinstance(order, BlockShuffle) and order.lanes > 1", "False"),
    )
    yield (
        "balance is ignored",
        edit("loader.make_batch:Work.picks", "if place.whole is None:", "if True:"),
    )
    yield (
        "ranks get each other's samples",
        edit("loader.make_batch:Dealt.of_rank", "ends[shard.rank] - ", "0 * "),
    )
    yield (
        "balance deals by tokens where attention was asked for",
        edit("order.balance:Balance.factors", "if self.by == ATTENTION else (1, 0)", "if False else (1, 0)"),
    )
    yield (
        "a record in the place of an unreadable one is drawn for another sample",
        edit("loader.make_batch:Work.own", "positions[mine]", "positions[: mine.size]"),
    )
    yield (
        "micro-batches of a rank are not filled one after the other",
        edit("order.balance:room_of_slots", "each * np.arange(", "each * np.flip(np.arange(micro_batches)) + 0 * np.arange("),
    )
    yield (
        "costs of banned records count",
        edit(
            "loader.make_batch:Work._located",
            "stream.locate(span.epoch, span.run, place.step)",
            "stream.locate(span.epoch, span.run, 0)",
        ),
    )
    yield (
        "batches of buckets are not shuffled",
        edit("order.bucket:Bucketed._plan", "[batches.run(0, len(batches))]", "[:]"),
    )
    yield (
        "buckets of equal lengths are in no order",
        edit(
            "order.bucket:Bucketed._plan", 'np.argsort(self.lengths[ids], kind="stable")', "np.lexsort((-ids, self.lengths[ids]))"
        ),
    )
    yield (
        "the longest records are left over",
        edit("order.bucket:Bucketed._num_full", "// self.batch_size * self.batch_size", "* 1"),
    )
    yield (
        "buckets take any batch size",
        edit("stream.stream:RecordStream.for_batches", "if order.batch_size % batch_size:", "if False:"),
    )
    yield "caps are those of one epoch", edit("order.layout:Rules.capped", "max(0, cap - had)", "cap")
    yield (
        "caps of an amendment are ignored",
        edit("order.mixture:Mixture._regimes", "self._caps(caps, amendment.max_epochs,", "self._caps(caps, None,"),
    )
    yield (
        "a run that caps end is refused as one whose epochs become empty",
        edit("stream.mixed:MixedStream.is_finite", "and self.mixture.ends", "and False"),
    )
    yield (
        "what a cut period had not given comes no more",
        edit("order.layout:_amended", "replace(one, deferred=deferred)", "replace(one, deferred=None)"),
    )
    yield (
        "what is deferred is forgotten when an epoch ends",
        edit("order.layout:make_runs", "if deferred is not None:\n            plan = ", "if False:\n            plan = "),
    )
    yield (
        "an earlier amendment's deferred elements are lost at the next",
        edit(
            "order.layout:_cut",
            "if segment.deferred is None else segment.deferred.behind(",
            "if True else segment.deferred.behind(",
        ),
    )
    yield (
        "amendments begin a step late",
        edit("order.mixture:Mixture._amended_stages", "return amendment.step * ", "return (amendment.step + 1) * "),
    )
    yield (
        "an amendment of phases begins with the next phase",
        edit("order.mixture:Mixture._amended_stages", "num_samples) - done)", "num_samples))"),
    )
    yield (
        "a state of the run without the amendment is taken after its step",
        edit("loader.state:Identity.fitting", "if state.step > step:", "if False:"),
    )
    yield (
        "shares of tokens are shares of samples",
        edit("order.mixture:Mixture._by_samples", "[weight / mean if weight", "[weight / 1 if weight"),
    )
    yield (
        "a temperature takes samples for tokens",
        edit("order.mixture:Mixture._by_samples", "sizes = weights if means is None else", "sizes = weights if True else"),
    )
    yield (
        "temperatures do nothing",
        edit("order.mixture:tempered", "if size == 0 or", "if True:\n        return size\n    if size == 0 or"),
    )
    yield (
        "padding of packs counts as tokens",
        edit("stream.pack:PackStream.mean_tokens", "self.packing.num_packed", "self._sequences * self._options.length"),
    )
    yield (
        "batch_tokens keeps the bounds that fill a row up",
        edit("stream.pack:flatten_pack", "row[: np.searchsorted(row, row[-1]) + 1]", "row"),
    )
    yield (
        "batch_tokens takes packs of any length",
        edit("loader.loader:_rows_of", "!= {tokens}:", "!= {tokens} and False:"),
    )
    yield (
        "buckets in a mixture have phases",
        edit("stream.mixed:MixedStream.with_phases", "if part.has_records:", "if False:"),
    )
    yield (
        "padding is valid",
        edit("loader.make_batch:Work.finish", "len(picks) - place.padding", "len(picks)"),
    )
    yield (
        "unreadable records are replaced by banned ones",
        edit("stream.stream:RecordStream.replace_failed", "self.banned_at(unreadable.step))", "np.empty(0, np.int64))"),
    )
    yield (
        "pictures that are drawn twice have one crop",
        edit("stream.image:image_seeds", "seeds if isinstance(order, InvertibleOrder) else", "seeds if True else"),
    )
    yield (
        "a picture in the place of a broken one keeps its seed",
        edit("stream.image:ImageStream.replace_unreadable", "fixed.ids != picks.ids", "fixed.ids != fixed.ids"),
    )
    yield (
        "records drawn by weight are replaced by any",
        edit(
            "stream.stream:substitute", "order.draw(word) if isinstance(order, Weighted) else (word * n) >> 64", "(word * n) >> 64"
        ),
    )
    yield (
        "weights of phases are ignored without a mixture",
        edit("loader.schedule:PhaseSchedule.of", "phase.weights is not None and not stream.is_mixture", "False"),
    )


MUTANTS = dict(_mutants())


def _hunt(name: str, cases: int) -> int:
    """In a process of its own: apply one mutant, and run cases until one is wrong."""
    from tests.crossing.campaign import run_cases

    MUTANTS[name]()
    seen = run_cases(range(cases), most_wrong=1, most_s=HANGS_S)
    if not seen.wrong:
        sys.stdout.write(f"not found in {seen.cases} cases\n")
        return 1
    sys.stdout.write(f"found after {seen.cases} cases: {seen.wrong[0][1].strip().splitlines()[-1][:150]}\n")
    return 0


def _start(name: str, cases: int) -> tuple[str, int, str]:
    command = [sys.executable, "-m", "tests.crossing.mutants", "--one", name, "--cases", str(cases)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode < 0:  # it read where no record is: nobody overlooks that
        return name, 0, f"found: the process was ended by signal {-done.returncode}"
    said = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return name, done.returncode, said[-1] if said else f"ended with {done.returncode}"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Mutants of the library that the crossing test must find.")
    parser.add_argument("--cases", type=int, default=6000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--one", metavar="NAME", help="only this one, in this process")
    parser.add_argument("--like", metavar="TEXT", default="", help="only those whose names contain it")
    given = parser.parse_args()
    if given.one is not None:
        return _hunt(given.one, given.cases)
    missed, chosen = 0, [name for name in MUTANTS if given.like in name]
    with ThreadPoolExecutor(given.jobs) as pool:
        for name, code, said in pool.map(lambda name: _start(name, given.cases), chosen):
            missed += code != 0
            sys.stdout.write(f"{name:55} {said}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - missed} of {len(chosen)} mutants found\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
