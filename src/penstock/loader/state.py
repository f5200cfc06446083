"""The state of a loader: plain JSON types, with a 24-byte cursor in them; and whether a state belongs to a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from penstock.argument import shown
from penstock.errors import StateError, StateMismatchError
from penstock.fingerprint import fingerprint_of
from penstock.order import Cursor, Phase
from penstock.records import SAMPLINGS, is_same_data
from penstock.stream import Stream

__all__ = ["WHOLE", "Identity", "State", "parse_state"]

STATE_VERSION = 1
ORDER_VERSIONS = (1, 2)
"""Versions of the arithmetic of streams that states of this library carry; the order of a state of version 1 still goes on."""

WHOLE = "whole"
"""The digest of all records, next to those of samples."""

MAX_TEXT = 16 << 20
"""Characters of a state, all keys and values together."""

MAX_DIFFERENCES = 8
"""Differences that a message tells."""

CURSOR_DIGITS = 48

_KEYS = {"version", "order_version", "cursor", "step", "batch_size", "data", "plan"}
_SAMPLES = "samples"
"""The key that states of the first versions do not have."""


@dataclass(frozen=True)
class Known:
    """What is known of data: its fingerprint, and the digests of samples by name."""

    fingerprint: str
    samples: Mapping[str, str]


@dataclass(frozen=True)
class State:
    """A state whose parts are what they must be; whether it belongs to a run is another question."""

    order_version: int
    cursor: Cursor
    step: int
    batch_size: int
    data: Known
    plan: Mapping[str, str]


def parse_state(state: Any) -> State:
    """A state as a checkpoint keeps it; StateError if it is something else."""
    if not isinstance(state, Mapping):
        raise StateError(f"expected a state with the keys {sorted(_KEYS)}, got {shown(type(state).__name__)}")
    if not _KEYS <= set(state) <= {*_KEYS, _SAMPLES}:
        found = ", ".join(map(shown, islice(state, 2 * len(_KEYS))))[:300]
        raise StateError(f"expected a state with the keys {sorted(_KEYS)}, got {found}")
    for key, wanted in (("version", (STATE_VERSION,)), ("order_version", ORDER_VERSIONS)):
        if type(state[key]) is not int or state[key] not in wanted:
            raise StateError(
                f"expected {key} {wanted[-1]}, got {shown(state[key])}: resume with the penstock that saved this state"
            )
    for key in ("step", "batch_size"):
        if type(state[key]) is not int or not 0 <= state[key] < 2**63:
            raise StateError(f"damaged state: expected a whole number as {key}, got {shown(state[key])}")
    data, samples, plan = state["data"], state.get(_SAMPLES, {}), state["plan"]
    if not isinstance(data, str) or not _are_texts(samples) or not _are_texts(plan):
        raise StateError("damaged state: expected a fingerprint and digests of the data, and a plan, as texts")
    if len(data) + _num_characters(samples) + _num_characters(plan) > MAX_TEXT:
        raise StateError(f"damaged state: expected at most {MAX_TEXT} characters, found more")
    return State(state["order_version"], _cursor(state["cursor"]), state["step"], state["batch_size"], Known(data, samples), plan)


def _are_texts(values: object) -> bool:
    return isinstance(values, Mapping) and all(isinstance(one, str) for pair in values.items() for one in pair)


def _num_characters(texts: Mapping[str, str]) -> int:
    return sum(len(key) + len(text) for key, text in texts.items())


def _cursor(text: object) -> Cursor:
    if not isinstance(text, str) or len(text) != CURSOR_DIGITS:
        raise StateError(f"damaged state: expected a cursor of {CURSOR_DIGITS} hexadecimal digits, got {shown(text)}")
    try:
        return Cursor.from_bytes(bytes.fromhex(text))
    except ValueError as error:
        raise StateError(f"damaged state: {shown(text)} as the cursor: {error}") from error


class Identity:
    """What a state knows a run by: its data and its plan. ``check`` is how data is known again: by "samples" or as a "whole"."""

    def __init__(self, stream: Stream, phases: Sequence[Phase] | None, check: str) -> None:
        self._stream, self._phases, self._check = stream, phases, check
        self._whole: str | None = None  # the digest of all records, once it was computed

    def of_stream(self, stream: Stream) -> "Identity":
        """The same of another stream."""
        return Identity(stream, self._phases, self._check)

    def state(self, cursor: Cursor, step: int, batch_size: int) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "version": STATE_VERSION,
            "order_version": self._stream.order_version,
            "cursor": bytes(cursor).hex(),
            "step": step,
            "batch_size": batch_size,
            "data": self._known.fingerprint,
            _SAMPLES: dict(self._known.samples),
            "plan": dict(self._plan),
        }

    @cached_property
    def _plan(self) -> dict[str, str]:
        return self._plan_of(self._stream.plan())

    def _plan_of(self, of_stream: Mapping[str, Any]) -> dict[str, str]:
        plan = {key: str(value) for key, value in of_stream.items()}
        if self._phases is not None:
            plan["phases"] = repr(self._phases) if len(self._phases) < 9 else fingerprint_of(repr(self._phases))
        return plan

    @cached_property
    def _known(self) -> Known:
        """Computed once, because files are looked at for it."""
        found = {sampling.name: self._stream.sample_digest(sampling) for sampling in SAMPLINGS}
        if self._check == WHOLE:
            found[WHOLE] = self._whole or self._stream.data_digest()
        return Known(self._stream.data_fingerprint, {name: digest for name, digest in found.items() if digest is not None})

    def fitting(self, state: State, stream: Stream) -> Stream:
        """The stream that goes on with a state: the loader's own, or the order of an older version of it. StateMismatchError, with
        the differences, if the state belongs to other data or another order.
        """
        try:
            return self._fitting(state, stream)
        except StateMismatchError:
            for step, before in stream.unamended():
                if not self.of_stream(before).fits(state, before):
                    continue
                if state.step > step:
                    raise StateMismatchError(
                        f"the state was saved at step {state.step} by the run without the amendment at step {step}: "
                        f"amend the mixture at step {state.step} or later"
                    ) from None
                return stream
            raise

    def fits(self, state: State, stream: Stream) -> bool:
        """Whether a state was saved by a stream as it is."""
        try:
            return self._fitting(state, stream) is stream
        except StateMismatchError:
            return False

    def _fitting(self, state: State, stream: Stream) -> Stream:
        version = stream.order_version
        stream, plan = stream.continued(state.cursor.epoch) if state.order_version < version else (stream, stream.plan())
        _refuse([*self._data_differences(state.data), *_differences(state.plan, self._plan_of(plan))])
        if state.order_version > version:  # and nothing else says why: it is of a later release
            raise StateMismatchError(f"the state has order version {state.order_version}, this loader {version}")
        if state.cursor.seed != stream.seed:
            raise StateMismatchError(f"the state has the seed {state.cursor.seed}, this loader {stream.seed}")
        return stream

    def _data_differences(self, known: Known) -> list[str]:
        """How the data differs from that of a state; it is looked at anew."""
        stream = self._stream
        if self._check == WHOLE:
            own = self._whole = stream.data_digest()
            theirs = known.samples.get(WHOLE, "no digest of all records")
            return [] if own == theirs else [f"data: {shown(theirs[:24])} in the state, {own[:24]!r} of all records here"]
        if is_same_data(known.samples, known.fingerprint, stream.sample_digest, lambda: stream.data_fingerprint):
            return []
        own = stream.data_fingerprint
        if own == known.fingerprint:
            return ["data: names, sizes and ends of the files are those of the state, what is between them is not"]
        return [f"data: {shown(known.fingerprint[:16])} in the state, {own[:16]!r} here"]


def _refuse(differences: Sequence[str]) -> None:
    if differences:
        told = "; ".join(differences[:MAX_DIFFERENCES])
        more = "" if len(differences) <= MAX_DIFFERENCES else f"; and {len(differences) - MAX_DIFFERENCES} more"
        raise StateMismatchError(
            f"the state belongs to another run (load_state_dict(state, strict=False) loads it anyway): {told}{more}"
        )


def _differences(plan: Mapping[str, str], own_plan: Mapping[str, str]) -> list[str]:
    keys = [*own_plan, *(key for key in plan if key not in own_plan and not _is_without_effect(key))]
    return [
        f"{_bare(key)}: {_bare(plan.get(key, 'not there'))} in the state, {_bare(own_plan.get(key, 'not there'))} here"
        for key in keys
        if plan.get(key) != own_plan.get(key)
    ]


def _bare(text: str) -> str:
    """A text of a state as a message shows it: escaped and short, without quotes."""
    return shown(text).strip("'\"")


def _is_without_effect(key: str) -> bool:
    """The batch size of a mixture whose order does not depend on it, which version 1 kept."""
    return key.endswith("mixture batch_size")
