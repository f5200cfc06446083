"""The state of a loader: plain JSON types, with a 24-byte cursor in them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import StateError, StateMismatchError
from penstock.order import Cursor

__all__ = ["STATE_VERSION", "State", "check_state", "make_state", "parse_state"]

STATE_VERSION = 1
ORDER_VERSIONS = (1, 2)
"""Versions of the arithmetic of streams that states of this library carry; the order of a state of version 1 still goes on."""
_KEYS = {"version", "order_version", "cursor", "step", "batch_size", "data", "plan"}


def make_state(cursor: Cursor, step: int, batch_size: int, data: str, plan: Mapping[str, str], order: int) -> dict[str, Any]:
    """What a checkpoint keeps; ``order`` is the version of the stream's arithmetic."""
    return {
        "version": STATE_VERSION,
        "order_version": order,
        "cursor": bytes(cursor).hex(),
        "step": step,
        "batch_size": batch_size,
        "data": data,
        "plan": dict(plan),
    }


@dataclass(frozen=True)
class State:
    """A state whose parts are what they must be; whether it belongs to a run is another question."""

    order_version: int
    cursor: Cursor
    step: int
    batch_size: int
    data: str
    plan: Mapping[Any, Any]


def parse_state(state: Any) -> State:
    """A state as a checkpoint keeps it; StateError if it is something else."""
    if not isinstance(state, Mapping) or set(state) != _KEYS:
        found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise StateError(f"expected a state with the keys {sorted(_KEYS)}, got {str(found)[:200]}")
    for key, wanted in (("version", (STATE_VERSION,)), ("order_version", ORDER_VERSIONS)):
        if type(state[key]) is not int or state[key] not in wanted:
            raise StateError(
                f"expected {key} {wanted[-1]}, got {str(state[key])[:100]!r}: resume with the penstock that saved this state"
            )
    for key in ("step", "batch_size"):
        if type(state[key]) is not int or not 0 <= state[key] < 2**63:
            raise StateError(f"damaged state: expected a whole number as {key}, got {str(state[key])[:100]!r}")
    try:
        cursor = Cursor.from_bytes(bytes.fromhex(state["cursor"]))
    except (TypeError, ValueError) as error:
        raise StateError(f"damaged state: {error}") from error
    if not isinstance(state["plan"], Mapping) or not isinstance(state["data"], str):
        raise StateError("damaged state: expected a plan and a fingerprint of the data")
    return State(state["order_version"], cursor, state["step"], state["batch_size"], state["data"], state["plan"])


def check_state(state: State, data: str, plan: Mapping[str, str]) -> None:
    """StateMismatchError, with the differences, if a state belongs to other data or another order."""
    differences = _differences(state.data, state.plan, data, plan)
    if differences:
        told = "\n".join(f"  {line}" for line in differences)
        raise StateMismatchError(
            f"the state belongs to another run (load_state_dict(state, strict=False) takes it all the same):\n{told}"
        )


def _differences(data: str, plan: Mapping[Any, Any], own_data: str, own_plan: Mapping[str, str]) -> list[str]:
    told = [] if data == own_data else [f"data: {data[:16]}... in the state, {own_data[:16]}... here"]
    for key in [*own_plan, *(key for key in plan if key not in own_plan and not _is_without_effect(key))]:
        if plan.get(key) != own_plan.get(key):
            told.append(f"{key}: {str(plan.get(key, 'not there'))[:200]} in the state, {own_plan.get(key, 'not there')} here")
    return told


def _is_without_effect(key: object) -> bool:
    """The batch size of a mixture whose order does not depend on it, which version 1 kept."""
    return isinstance(key, str) and key.endswith("mixture batch_size")
