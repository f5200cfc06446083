"""What is refused, and how: every row says in which cases, with which exception and which words."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tests.crossing.case import Case, Leg
from tests.crossing.check import RefusalError
from tests.crossing.mixing import ENDLESS, AmendmentError
from tests.crossing.model import (
    Mix,
    NoMeanError,
    NothingLeftError,
    Packs,
    Records,
    Sequences,
    Stream,
    Table,
    leaves,
    mean_tokens,
    num_steps,
    same_forms,
    varying,
)

from penstock.errors import BatchError, SchemaMismatchError, StateMismatchError


@dataclass(frozen=True)
class Row:
    """A refusal. ``sure`` ones must come whenever ``applies``; others may, because another step may be reached first."""

    name: str
    applies: Callable[[Case], bool]
    exception: type[Exception] | tuple[type[Exception], ...]
    words: str
    sure: bool = True
    by_leg: bool = False  # sure if it applies to the first leg; a later one may not be reached


def _tables(case: Case) -> Iterator[Table]:
    for stream in _streams(case):
        if isinstance(stream, Records | Sequences):
            yield stream.table


def _streams(case: Case) -> Iterator[Stream]:
    yield from case.stream.streams()


def _sequences(case: Case) -> list[Sequences]:
    return [stream for stream in _streams(case) if isinstance(stream, Sequences)]


def _packs(case: Case) -> list[Packs]:
    return [stream for stream in _streams(case) if isinstance(stream, Packs) and _has_ragged(stream)]


def _mixtures(case: Case) -> list[Mix]:
    return [stream for stream in _streams(case) if isinstance(stream, Mix)]


def _has_ragged(stream: Sequences) -> bool:
    return stream.has_pages or any(form.kind != "fixed" for form in stream.table.forms.values())


def _ordered_by(case: Case, method: str, *, pages: bool | None = None) -> bool:
    return any(
        stream.records.ordered.method == method and pages in (None, stream.has_pages) and _has_ragged(stream)
        for stream in _sequences(case)
    )


def _divides_badly(case: Case) -> bool:
    for leg in case.legs:
        sizes = [leg.size] if leg.phases is None else [phase.batch_size for phase in leg.phases]
        if any(size % leg.world for size in sizes if size):
            return True
    return False


def _differ(case: Case) -> bool:
    if any(table.parts_differ for table in _tables(case)):
        return True
    for mixture in _mixtures(case):
        forms = [
            stream.forms()
            for _, stream in mixture.parts
            if all(_has_ragged(s) for s in stream.streams() if isinstance(s, Sequences))
        ]
        if any(not same_forms(one, forms[0]) for one in forms):
            return True
    return False


def _all_banned(case: Case) -> bool:
    """Whether a stream has nothing left at some step."""
    for stream in _with_bans(case.stream):
        bans = stream.bans if isinstance(stream, Records) else (*stream.records.bans, *stream.bans)
        banned = _ids(bans)
        if isinstance(stream, Packs) and stream.records.bans and len(_ids(stream.records.bans)) >= stream.table.length:
            return True
        count = len(stream.texts) if isinstance(stream, Packs) and _has_ragged(stream) else stream.table.length
        if isinstance(stream, Sequences) and not isinstance(stream, Packs) and stream.has_marks:
            banned = stream.banned(max((step for step, _ in bans), default=0))
            if stream.bans and len(_ids(stream.bans)) >= len(stream.texts):
                return True
            if stream.records.bans and len(_ids(stream.records.bans)) >= count:
                return True
        elif bans and len(banned) >= count:
            return True
        records = stream if isinstance(stream, Records) else stream.records
        if records.bans and _weightless(records, _ids(records.bans)):
            return True
        if (
            bans
            and isinstance(stream, Sequences)
            and not isinstance(stream, Packs)
            and _has_ragged(stream)
            and _nothing_left(stream, banned)
        ):
            return True
    return False


def _ids(bans: Iterable[tuple[int, Iterable[Any]]]) -> frozenset[Any]:
    """All that are banned at some step."""
    return frozenset[Any]().union(*(ids for _, ids in bans))


def _weightless(records: Records, gone: frozenset[int]) -> bool:
    """Whether no record but those has a weight, where they are drawn by weight."""
    weights = records.ordered.weights
    return bool(weights) and gone.issuperset(i for i, weight in enumerate(weights) if weight)


def _nothing_left(stream: Sequences, banned: frozenset[Any]) -> bool:
    if not stream.has_pages and not any(tokens for number, tokens in enumerate(stream.storage) if number not in banned):
        return True
    try:
        stream._line(0, banned)
    except NothingLeftError:
        return True
    return False


def _with_bans(stream: Stream) -> Iterator[Records | Sequences]:
    """The leaves, with all bans put upon them."""
    if isinstance(stream, Mix):
        for part in stream.banning:
            yield from _with_bans(part)
    elif isinstance(stream, Records | Sequences):
        yield stream


def _repeats_nothing(case: Case) -> bool:
    """Whether a mixture would have to repeat an empty stream."""
    for mixture in reversed(_mixtures(case)):  # those within first: the others are made of them
        if mixture.stop not in ("all_exhausted", "forever"):
            continue
        stages = [weights for _, weights in mixture.weights] if mixture.is_staged else [mixture.weights]
        stages += [amendment.weights for amendment in mixture.amendments]
        names = [name for name, _ in mixture.parts]
        if _weighs_nothing(stages, dict(zip(names, mixture.lengths, strict=True))):
            return True
        phases = case.legs[0].phases
        if phases is not None and mixture is case.stream:
            weights = [phase.weights or mixture.weights for phase in phases]
            if _weighs_nothing(weights, dict(zip(names, mixture.elements, strict=True))):
                return True
    return False


def _weighs_nothing(stages: list[Any], lengths: dict[str, int]) -> bool:
    return any(weights is not None and weights.get(name) and not length for weights in stages for name, length in lengths.items())


def _inner(case: Case) -> list[Mix]:
    return [mixture for mixture in _mixtures(case) if mixture is not case.stream]


def _other_shape(case: Case) -> bool:
    if not isinstance(case.stream, Mix) or not case.stream.is_bound:
        return False
    legs = case.legs
    return any((one.size, one.tail) != (other.size, other.tail) for one, other in pairwise(legs))


def _epochs(case: Case, leg: Leg) -> list[tuple[int, bool]]:
    """Samples of the epochs of a leg up to one like which all later ones are, and whether caps end the run there.

    Where an amendment does not fit, those of the mixture before it, which is made first.
    """
    whole = case.stream_of(leg)
    stream = leg.job(whole).stream
    if not isinstance(stream, Mix):
        return [(stream.axis(0) // stream.stride, False)]
    try:
        return [(epoch.length, epoch.is_over) for epoch in stream.course.until_alike()]
    except AmendmentError:
        assert isinstance(whole, Mix)
        return _epochs(replace(case, stream=whole.unamended(len(whole.amendments) - 1)), replace(leg, kept=None))


def _legs_by_epochs(case: Case) -> list[Leg]:
    return [leg for leg in case.legs if leg.phases is None]


def _short_drop(case: Case) -> bool:
    for leg in _legs_by_epochs(case):
        has_samples = leg.tail == "drop" and leg.job(case.stream_of(leg)).stream.axis(0) > 0
        if has_samples and all(length < (leg.size or 1) for length, _ in _epochs(case, leg)):
            return True
    return False


def _short_wrap(case: Case) -> bool:
    """Whether a run that caps end has less than a batch."""
    for leg in _legs_by_epochs(case):
        found = [length for length, _ in _epochs(case, leg)]
        if leg.tail == "wrap" and isinstance(case.stream, Mix) and not found[-1] and 0 < sum(found) < (leg.size or 1):
            return True
    return False


def _empty_later(case: Case) -> bool:
    """Whether weights by step leave epochs without samples."""
    for leg in _legs_by_epochs(case):
        found = _epochs(case, leg)
        if found[0][0] and found[-1] == (0, False):
            return True
    return False


def _dropped_later(case: Case) -> bool:
    """Whether weights by step or caps leave epochs shorter than a batch."""
    for leg in _legs_by_epochs(case):
        if leg.tail == "drop" and leg.size:
            *earlier, (length, is_over) = _epochs(case, leg)
            if 0 < length < leg.size and not is_over and any(one >= leg.size for one, _ in earlier):
                return True
    return False


def _amendment_fails(case: Case, words: str) -> bool:
    """Whether an amendment does not fit a leg, or the mixture before its batch size and phases are known."""
    return isinstance(case.stream, Mix) and any(words == found for leg in case.legs for found in _amendment_errors(case, leg))


def _is_amended(case: Case) -> bool:
    return isinstance(case.stream, Mix) and bool(case.stream.amendments)


def _amendment_errors(case: Case, leg: Leg) -> Iterator[str]:
    stream = case.stream_of(leg)
    assert isinstance(stream, Mix)
    for kept in range(1, len(stream.amendments) + 1):
        one = stream.unamended(kept)
        for make in (lambda one=one: leg.job(one).stream, lambda one=one: one.bind(one.batch_size or 1, "keep")):
            with suppress(ArithmeticError, LookupError, TypeError, ValueError, NoMeanError):  # another row foresees it
                try:
                    make().course.until_alike()
                except AmendmentError as error:
                    yield str(error)


def _no_means(case: Case) -> bool:
    """Whether a mixture goes by tokens that a stream does not count."""
    for mixture in _mixtures(case):
        try:
            for _, stream in mixture.parts if mixture.by is not None else ():
                mean_tokens(stream, str(mixture.by))
        except NoMeanError:
            return True
        except (ValueError, ZeroDivisionError):  # there are no ragged fields, or no tokens
            continue
    return False


def _shares_nothing(case: Case) -> bool:
    """Whether a stream without tokens has a share of them."""
    for mixture in _mixtures(case):
        if mixture.by is not None:
            empty = []
            for name, stream in mixture.parts:
                with suppress(NoMeanError, ValueError):
                    try:
                        empty += [name] if mean_tokens(stream, mixture.by) == 0 else []
                    except ZeroDivisionError:  # in a mixture within
                        return True
            stages = [weights for _, weights in mixture.weights] if mixture.is_staged else [mixture.weights]
            stages += [amendment.weights for amendment in mixture.amendments]
            stages += [phase.weights for leg in case.legs for phase in leg.phases or () if mixture is case.stream]
            if any(weights is not None and weights.get(name) for weights in stages for name in empty):
                return True
    return False


def _resumed(case: Case, *, fewer: bool) -> bool:
    """Whether a leg has fewer, or more, amendments than the one before."""
    known = [99 if leg.kept is None else leg.kept for leg in case.legs]
    return any(later < earlier if fewer else later > earlier for earlier, later in pairwise(known))


def _are_documents(stream: Packs) -> bool:
    """Whether the records are the documents."""
    return list(map(len, stream.texts)) == list(map(len, stream.storage))


def _too_long(case: Case) -> bool:
    """Whether documents that are not to be cut are longer than a sequence, of the stream or of its phases."""
    for stream in _packs(case):
        if stream.split != "never" or stream.long != "error":
            continue
        phases = [] if isinstance(case.stream, Mix) else [phase for leg in case.legs for phase in leg.phases or ()]
        if any(len(text) + stream.extra > min([stream.length, *(p.seq_len for p in phases)]) for text in stream.texts):
            return True
    return False


def _all_dropped(case: Case) -> bool:
    """Whether a phase has shorter sequences than any document, and those are left out."""
    stream = case.stream
    if not isinstance(stream, Packs) or not _has_ragged(stream) or stream.long != "drop" or not stream.axis(0):
        return False
    phases = [phase for leg in case.legs for phase in leg.phases or ()]
    steps = num_steps(phases, stream.axis(0))
    lengths = [len(text) + stream.extra for text in stream.texts if len(text) + stream.extra]
    return any(count and min(lengths) > phase.seq_len for phase, count in zip(phases, steps, strict=True))


def _short_line(case: Case) -> bool:
    """Whether sequences are longer than the line."""
    stream = case.stream
    if not isinstance(stream, Sequences) or stream.length <= stream.axis(0) or not stream.axis(0):
        return False
    return any(leg.tail != "wrap" and leg.phases is None for leg in case.legs)


def _wrapped_batches(case: Case) -> bool:
    """Whether batches of one stream would be filled up from several."""
    if not isinstance(case.stream, Mix) or case.stream.unit != "batch" or case.stream.is_endless:
        return False
    return any(
        length % leg.size
        for leg in _legs_by_epochs(case)
        if leg.tail == "wrap" and leg.size
        for length, _ in _epochs(case, leg)
        if length < ENDLESS
    )


def _phases_over_nothing(case: Case) -> bool:
    phases = case.legs[0].phases
    stream = case.stream
    if phases is None or (sum(stream.elements) if isinstance(stream, Mix) else stream.axis(0)):
        return False
    return any(phase.steps for phase in phases)


def _bucketed(case: Case) -> list[Any]:
    return [stream for stream in leaves(case.stream) if isinstance(stream, Records) and stream.buckets is not None]


def _balance_of(case: Case, *, lengths: bool | None = None) -> list[str]:
    """What legs are balanced by; only lengths, or only fields, if that is said."""
    found = [leg.balance[0] for leg in case.legs if leg.balance is not None]
    return [by for by in found if lengths in (None, by in ("attention", "tokens"))]


def _own_forms(stream: Records) -> dict[str, Any]:
    """The fields of records that are delivered as they are."""
    return {name: form for name, form in stream.table.forms.items() if name != getattr(stream, "image", None)}


def _no_lengths(case: Case) -> bool:
    """Whether records are to be measured by a length that they do not have, or have twice."""
    for stream in leaves(case.stream):
        if isinstance(stream, Records) and _balance_of(case, lengths=True):
            names = varying(stream.table)
            if len([name for name in names if name in _own_forms(stream)]) != 1:
                return True
    return False


def _odd_costs(case: Case) -> bool:
    """Whether the cost of a record is below 0, or no number."""
    for stream in leaves(case.stream):
        for by in _balance_of(case, lengths=False) if isinstance(stream, Records) else ():
            values = stream.table.columns.get(by, [])
            if any(isinstance(value, int | float) and not 0 <= value < float("inf") for value in values):
                return True
    return False


ROWS = (
    Row("ranks do not divide the batch", _divides_badly, ValueError, "divided among"),
    Row("fields differ", _differ, SchemaMismatchError, "same fields"),
    Row("tokens that are not counted", _no_means, (TypeError, KeyError), "by="),
    Row("shares of no tokens", _shares_nothing, ValueError, "has no tokens"),
    Row("no ragged field", lambda case: not all(map(_has_ragged, _sequences(case))), ValueError, "ragged"),
    Row(
        "blocks are no documents",
        lambda case: any(s.table.is_blocks and not s.has_pages and _has_ragged(s) for s in _sequences(case)),
        ValueError,
        "blocks of a token file",
    ),
    Row(
        "sequences cannot be skipped",
        lambda case: bool(_sequences(case)) and any(leg.on_error == "skip" for leg in case.legs),
        ValueError,
        "cannot be replaced",
    ),
    Row(
        "documents of tokens without a separator",
        lambda case: any(
            (s.documents or isinstance(s, Packs)) and s.has_pages and s.separator is None and not s.table.has_documents
            for s in _sequences(case)
        ),
        ValueError,
        "separator",
    ),
    Row("a separator that is no token", lambda case: any(s.separator == 70_000 for s in _sequences(case)), ValueError, "fit"),
    Row(
        "page of documents", lambda case: any(s.page is not None and not s.has_pages for s in _sequences(case)), ValueError, "page"
    ),
    Row(
        "documents by sample",
        lambda case: any(_ordered_by(case, method, pages=False) for method in ("sample", "weighted")),
        ValueError,
        "number of tokens",
    ),
    Row(
        "packs by sample",
        lambda case: any(s.records.ordered.method in ("sample", "weighted") for s in _packs(case)),
        ValueError,
        "number of tokens",
    ),
    Row(
        "packs in lanes",
        lambda case: any(dict(s.records.ordered.options).get("lanes", 1) > 1 for s in _packs(case)),
        ValueError,
        "lanes",
    ),
    Row(
        "bans on token blocks before packing",
        lambda case: any(s.has_pages and s.records.bans and not _are_documents(s) for s in _packs(case)),
        ValueError,
        "pack first",
    ),
    Row(
        "a loss mask that is not there",
        lambda case: any(s.mask and _has_ragged(s) and not s.has_mask for s in _sequences(case)),
        ValueError,
        "has no loss mask",
        sure=False,  # a separator may be wrong
    ),
    Row("documents longer than a sequence", _too_long, ValueError, "cuts none"),
    Row("phases in which every document is dropped", _all_dropped, ValueError, "no document is that short"),
    Row(
        "phases that do not keep multiples",
        lambda case: any(phase.seq_len % s.multiple_of for s in _packs(case) for leg in case.legs for phase in leg.phases or ()),
        ValueError,
        "multiple_of",
        sure=False,  # in a mixture the length is refused before
    ),
    Row(
        "phases that change the length of packs in a mixture",
        lambda case: (
            isinstance(case.stream, Mix)
            and any(phase.seq_len != s.length for s in _packs(case) for leg in case.legs for phase in leg.phases or ())
        ),
        ValueError,
        "keeps the length",
        sure=False,  # phases may be refused for other reasons
    ),
    Row("sequences by slide", lambda case: _ordered_by(case, "slide"), TypeError, "in the order"),
    Row("token sequences by weight", lambda case: _ordered_by(case, "weighted", pages=True), TypeError, "in the order"),
    Row("sequences by design", lambda case: _ordered_by(case, "design"), TypeError, "in the order"),
    Row("a mixture within is endless", lambda case: any(m.is_endless for m in _inner(case)), ValueError, "never ends"),
    Row("a mixture within is bound", lambda case: any(m.is_bound for m in _inner(case)), ValueError, "inside another mixture"),
    Row(
        "batch_size of the mixture",
        lambda case: any(
            mixture.batch_size is not None
            and any(
                size != mixture.batch_size
                for leg in case.legs
                for size in ([leg.size] if leg.phases is None else [phase.batch_size for phase in leg.phases])
            )
            for mixture in _mixtures(case)
        ),
        ValueError,
        "batch_size",
    ),
    Row(
        "weights by step and phases",
        lambda case: any(m.is_staged for m in _mixtures(case)) and any(leg.phases is not None for leg in case.legs),
        ValueError,
        "phases",
    ),
    Row(
        "weights and a temperature",
        lambda case: any(m.temperature is not None and m.weights is not None for m in _mixtures(case)),
        ValueError,
        "exclude each other",
    ),
    Row("caps within a mixture", lambda case: any(m.max_epochs for m in _inner(case)), ValueError, "max_epochs, which are those"),
    Row("amendments behind the end", lambda case: _amendment_fails(case, "the run ends"), ValueError, "the run ends", by_leg=True),
    Row(
        "amendments behind the phases",
        lambda case: _amendment_fails(case, "the phases have"),
        ValueError,
        "the phases have",
        sure=False,
        by_leg=True,
    ),
    Row(
        "amendments within batches",
        lambda case: _amendment_fails(case, "would begin within a batch"),
        ValueError,
        "an amendment would begin",
        sure=False,
        by_leg=True,
    ),
    Row(
        "amendments within sequences",
        lambda case: _amendment_fails(case, "leaves pieces") or (_wrapped_batches(case) and _is_amended(case)),
        ValueError,
        "leaves pieces",
        sure=False,
        by_leg=True,
    ),
    Row(
        "a state behind an amendment that it does not know",
        lambda case: _resumed(case, fewer=False),
        StateMismatchError,
        "without the amendment",
        sure=False,
    ),
    Row(
        "a state with an amendment",
        lambda case: _resumed(case, fewer=True),
        StateMismatchError,
        "another run",
        sure=False,
    ),
    Row(
        "batch_tokens and what excludes it",
        lambda case: any(leg.tokens is not None and leg.balance is not None for leg in case.legs),
        ValueError,
        "leave out batch_size, phases and balance",
        sure=False,
        by_leg=True,
    ),
    Row(
        "batch_tokens of other sequences",
        lambda case: any(
            leg.tokens is not None and not (isinstance(stream, Packs) and stream.length == leg.tokens)
            for leg in case.legs
            for stream in leaves(case.stream_of(leg))
        ),
        ValueError,
        "is for packed sequences",
        sure=False,
        by_leg=True,
    ),
    Row("another batch size or tail", _other_shape, StateMismatchError, "another run", sure=False),
    Row("another batch size before an amendment", _other_shape, StateMismatchError, "need the batch size and tail", sure=False),
    Row(
        "restart and seek",
        lambda case: any(leg.restart and leg.seek is not None for leg in case.legs),
        ValueError,
        "restart",
        sure=False,
    ),
    Row("transform gives None", lambda case: any(leg.transform == "nothing" for leg in case.legs), BatchError, "None", sure=False),
    Row(
        "seq_len without sequences",
        lambda case: not _sequences(case) and any(phase.seq_len != 1 for leg in case.legs for phase in leg.phases or ()),
        ValueError,
        "sequences",
        sure=False,
    ),
    Row(
        "weights of phases without a mixture",
        lambda case: not isinstance(case.stream, Mix) and any(p.weights is not None for leg in case.legs for p in leg.phases or ()),
        ValueError,
        "weights",
    ),
    Row(
        "phases of sequences in a mixture in a mixture",
        lambda case: bool(_inner(case) and _sequences(case)) and any(leg.phases is not None for leg in case.legs),
        ValueError,
        "phases change the length of sequences",
        sure=False,  # sequences of other lengths would be wrong
    ),
    Row("everything is banned", _all_banned, (ValueError, BatchError), "banned", sure=False),
    Row("an empty stream is repeated", _repeats_nothing, ValueError, "empty"),
    Row("shorter than a batch", _short_drop, ValueError, "drop"),
    Row("a run shorter than a batch", _short_wrap, ValueError, "fewer samples than a batch", sure=False, by_leg=True),
    Row("epochs that are dropped later", _dropped_later, ValueError, "drops every epoch"),
    Row("epochs that are empty later", _empty_later, ValueError, "has no samples"),
    Row("longer than the line", _short_line, ValueError, "fewer than"),
    Row("batches of one stream, wrapped", _wrapped_batches, ValueError, "tail='wrap'"),
    Row(
        "buckets of another batch size",
        lambda case: any(
            stream.buckets[0] % leg.size for stream in _bucketed(case) for leg in case.legs if leg.phases is None and leg.size
        ),
        ValueError,
        "buckets are for batches of",
        sure=False,
        by_leg=True,
    ),
    Row(
        "buckets that are wrapped",
        lambda case: any(
            stream.table.length % stream.buckets[0]
            for stream in _bucketed(case)
            for leg in case.legs
            if leg.tail == "wrap" and leg.phases is None
        ),
        ValueError,
        "tail='wrap' lets batches begin",
        sure=False,
        by_leg=True,
    ),
    Row(
        "buckets in phases",
        lambda case: bool(_bucketed(case)) and any(leg.phases is not None for leg in case.legs),
        ValueError,
        "leave out phases, or buckets",
        by_leg=True,
    ),
    Row(
        "buckets in lanes",
        lambda case: any(dict(stream.ordered.options).get("lanes", 1) > 1 for stream in _bucketed(case)),
        ValueError,
        "buckets have no lanes",
    ),
    Row(
        "lengths of records that cannot be read",
        lambda case: any(stream.table.bad for stream in _bucketed(case)),
        OSError,
        "",
        sure=False,
    ),
    Row(
        "balance of sequences",
        lambda case: bool(_balance_of(case)) and any(not isinstance(stream, Packs) for stream in _sequences(case)),
        ValueError,
        "nothing to balance",
        sure=False,
        by_leg=True,
    ),
    Row(
        "balance of packs by a field",
        lambda case: bool(_balance_of(case, lengths=False) and _packs(case)),
        ValueError,
        "packed sequences are balanced by",
        sure=False,
        by_leg=True,
    ),
    Row("balance by lengths that are not there", _no_lengths, ValueError, "length", sure=False, by_leg=True),
    Row(
        "balance by a field that is not there",
        lambda case: any(
            by not in _own_forms(stream)
            for stream in leaves(case.stream)
            if isinstance(stream, Records)
            for by in _balance_of(case, lengths=False)
        ),
        KeyError,
        "balance: expected",
        sure=False,
        by_leg=True,
    ),
    Row(
        "balance by several numbers",
        lambda case: any(
            by in stream.table.forms and stream.table.forms[by].shape
            for stream in leaves(case.stream)
            if isinstance(stream, Records)
            for by in _balance_of(case, lengths=False)
        ),
        TypeError,
        "one real number",
        sure=False,
        by_leg=True,
    ),
    Row("balance by numbers below 0", _odd_costs, ValueError, "at least 0", sure=False, by_leg=True),
    Row(
        "balance in lanes",
        lambda case: any(
            dict(stream.ordered.options).get("lanes", 1) > 1
            for leg in case.legs
            if leg.balance is not None
            for stream in leaves(case.stream_of(leg))
            if isinstance(stream, Records)
        ),
        ValueError,
        "lanes",
        sure=False,
        by_leg=True,
    ),
    Row(
        "micro-batches do not divide the batch",
        lambda case: any(
            size % (leg.world * leg.balance[1])
            for leg in case.legs
            if leg.balance is not None
            for size in ([leg.size or 1] if leg.phases is None else [phase.batch_size for phase in leg.phases])
        ),
        ValueError,
        "cannot be divided",
        sure=False,
        by_leg=True,
    ),
    Row(
        "costs of records that cannot be read",
        lambda case: bool(_balance_of(case)) and any(table.bad for table in _tables(case)),
        OSError,
        "",
        sure=False,
    ),
    Row("phases over nothing", _phases_over_nothing, ValueError, "empty"),
    Row(
        "too few records can be read",
        lambda case: any(
            len(gone := stream.table.bad.union(*(ids for _, ids in stream.bans))) >= stream.table.length > 0
            or _weightless(stream, gone)
            for stream in _with_bans(case.stream)
            if isinstance(stream, Records) and stream.table.bad
        ),
        BatchError,
        "too few records",
        sure=False,
    ),
)


def applying(case: Case) -> list[Row]:
    """The rows that foresee a refusal. Where one does, the model of a later one may not exist."""
    found: list[Row] = []
    for row in ROWS:
        try:
            if row.applies(case):
                is_sure = row.sure or (row.by_leg and row.applies(replace(case, legs=case.legs[:1])))
                found.append(replace(row, sure=is_sure))
        except Exception:
            if not found:
                raise
    return found


def matching(rows: list[Row], refused: RefusalError) -> Row | None:
    """The row that foresaw a refusal."""
    for row in rows:
        if isinstance(refused.cause, row.exception) and row.words in str(refused.cause):
            return row
    return None
