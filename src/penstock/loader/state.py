"""The state of a loader: plain JSON types, with a 24-byte cursor in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from penstock.argument import shown
from penstock.errors import StateError, StateMismatchError
from penstock.order import Cursor

__all__ = ["STATE_VERSION", "WHOLE", "State", "check_state", "make_state", "parse_state"]

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


def make_state(cursor: Cursor, step: int, batch_size: int, data: "Known", plan: Mapping[str, str], order: int) -> dict[str, Any]:
    """What a checkpoint keeps; ``order`` is the version of the stream's arithmetic."""
    return {
        "version": STATE_VERSION,
        "order_version": order,
        "cursor": bytes(cursor).hex(),
        "step": step,
        "batch_size": batch_size,
        "data": data.fingerprint,
        _SAMPLES: dict(data.samples),
        "plan": dict(plan),
    }


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
    if not isinstance(state, Mapping) or not _KEYS <= set(state) <= {*_KEYS, _SAMPLES}:
        found = [*islice(state, 2 * len(_KEYS))] if isinstance(state, Mapping) else type(state).__name__
        raise StateError(f"expected a state with the keys {sorted(_KEYS)}, got {_keys_shown(found)}")
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


def _keys_shown(found: object) -> str:
    return ", ".join(map(shown, found))[:300] if isinstance(found, list) else shown(found)


def _are_texts(values: object) -> bool:
    return isinstance(values, Mapping) and all(isinstance(key, str) and isinstance(text, str) for key, text in values.items())


def _num_characters(texts: Mapping[str, str]) -> int:
    return sum(len(key) + len(text) for key, text in texts.items())


def _cursor(text: object) -> Cursor:
    if not isinstance(text, str) or len(text) != CURSOR_DIGITS:
        raise StateError(f"damaged state: expected a cursor of {CURSOR_DIGITS} hexadecimal digits, got {shown(text)}")
    try:
        return Cursor.from_bytes(bytes.fromhex(text))
    except ValueError as error:
        raise StateError(f"damaged state: {shown(text)} as the cursor: {error}") from error


def check_state(state: State, plan: Mapping[str, str], data: Sequence[str]) -> None:
    """StateMismatchError, with the differences, if a state belongs to other data (whose differences are given) or another order."""
    differences = [*data, *_differences(state.plan, plan)]
    if differences:
        told = "; ".join(differences[:MAX_DIFFERENCES])
        more = "" if len(differences) <= MAX_DIFFERENCES else f"; and {len(differences) - MAX_DIFFERENCES} more"
        raise StateMismatchError(
            f"the state belongs to another run (load_state_dict(state, strict=False) takes it all the same): {told}{more}"
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
