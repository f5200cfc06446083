"""The state of a loader: plain JSON types, with a 24-byte cursor in them."""

from collections.abc import Mapping
from typing import Any

from penstock.errors import StateError, StateMismatchError
from penstock.order import ORDER_VERSION, Cursor

__all__ = ["STATE_VERSION", "check_state", "make_state"]

STATE_VERSION = 1
_KEYS = {"version", "order_version", "cursor", "step", "batch_size", "data", "plan"}


def make_state(cursor: Cursor, step: int, batch_size: int, data: str, plan: Mapping[str, str]) -> dict[str, Any]:
    """What a checkpoint keeps."""
    return {
        "version": STATE_VERSION,
        "order_version": ORDER_VERSION,
        "cursor": bytes(cursor).hex(),
        "step": step,
        "batch_size": batch_size,
        "data": data,
        "plan": dict(plan),
    }


def check_state(state: Any, data: str, plan: Mapping[str, str], *, strict: bool) -> tuple[Cursor, int, int]:
    """Cursor, step and batch size of a state that fits; StateMismatchError, with the differences, if it does not."""
    if not isinstance(state, Mapping) or set(state) != _KEYS:
        found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise StateError(f"expected a state with the keys {sorted(_KEYS)}, got {str(found)[:200]}")
    for key, wanted in (("version", STATE_VERSION), ("order_version", ORDER_VERSION)):
        if type(state[key]) is not int or state[key] != wanted:
            raise StateError(
                f"expected {key} {wanted}, got {str(state[key])[:100]!r}: resume with the penstock that saved this state"
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
    differences = _differences(state["data"], state["plan"], data, plan)
    if differences and strict:
        told = "\n".join(f"  {line}" for line in differences)
        raise StateMismatchError(
            f"the state belongs to another run (load_state_dict(state, strict=False) takes it all the same):\n{told}"
        )
    return cursor, state["step"], state["batch_size"]


def _differences(data: str, plan: Mapping[Any, Any], own_data: str, own_plan: Mapping[str, str]) -> list[str]:
    told = [] if data == own_data else [f"data: {data[:16]}... in the state, {own_data[:16]}... here"]
    for key in [*own_plan, *(key for key in plan if key not in own_plan)]:
        if plan.get(key) != own_plan.get(key):
            told.append(f"{key}: {str(plan.get(key, 'not there'))[:200]} in the state, {own_plan.get(key, 'not there')} here")
    return told
