"""A writer that never stops: transaction k, which depends on k and the number of records only, makes generation k.

    python -m tests.crash.keep_writing PATH

says START k and ACK k around every commit. It goes on from wherever the store is.
"""

import sys
from pathlib import Path

from tests.crash.plan import Model, Plan, State, Step
from tests.crash.workload import change, open_writer, say

OPTIONS = Plan((), chunk_records=3, threads=2)


def transaction(number: int, length: int) -> list[Step]:
    """The changes of a transaction: two or three records more, one changed, and now and then some less."""
    steps = [Step("extend", 10 * number, 2 + number % 2)]
    if length:
        steps.append(Step("update", 5_000 + number, ids=(number * 7 % length,), names=("caption", "number")))
    if number % 3 == 2:
        steps.append(Step("delete", ids=tuple({number % (length + 1), number * 5 % (length + 1), number * 11 % (length + 1)})))
    return steps


def expected(generation: int) -> State:
    """The records of a generation."""
    model = Model()
    for number in range(1, generation + 1):
        for step in transaction(number, len(model.records)):
            model.run(step)
    return model.records


def main(where: str) -> None:
    """Write until killed."""
    path = Path(where)
    with open_writer(path, OPTIONS, is_new=not any(path.glob("manifest/*.json"))) as writer:
        while True:
            number = writer.generation + 1
            say(f"START {number}")
            for step in transaction(number, len(writer)):
                change(writer, step)
            writer.commit()
            say(f"ACK {number}")


if __name__ == "__main__":
    main(*sys.argv[1:])
