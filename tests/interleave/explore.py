"""Every schedule of a few actors, depth first, each from its beginning: stateless search with sleep sets.

A world offers actions; performing one changes it. Two actions are independent if the world after both is the same in either order.
Schedules that differ only in the order of independent actions show the same, and one of them is run: an action that was tried at
a node sleeps in the branches to its right until something happens that depends on it (Godefroid, Partial-Order Methods, 1996).

A schedule is the list of the numbers of the actions that were taken, which is enough to run it again.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class Action(NamedTuple):
    """What may happen next.

    * actor: whose action it is; actions of one actor depend on each other
    * name: what happens
    * key, writes: the object that is read or written; a key that ends in a slash is a listing; "" touches no object
    * budget: bits of what it uses up; two actions that use up the same depend on each other
    * is_global: whether every action depends on it
    """

    actor: int
    name: str
    key: str = ""
    writes: bool = False
    budget: int = 0
    is_global: bool = False


class World(Protocol):
    """One run. ``actions`` is empty at its end."""

    def actions(self) -> list[Action]: ...
    def perform(self, action: Action) -> None: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...


def depend(one: Action, other: Action) -> bool:
    """Whether the order of two actions may matter."""
    if one.actor == other.actor or one.is_global or other.is_global or one.budget & other.budget:
        return True
    if not (one.writes or other.writes) or not one.key or not other.key:
        return False
    if one.key == other.key:
        return True
    return (one.key[-1] == "/" and other.key.startswith(one.key)) or (other.key[-1] == "/" and one.key.startswith(other.key))


@dataclass
class Node:
    """A state on the way: what may happen there, what sleeps, and what was taken."""

    actions: list[Action]
    sleep: set[Action]
    taken: int

    def child_sleep(self) -> set[Action]:
        """What sleeps after the action that was taken."""
        taken = self.actions[self.taken]
        return {action for action in self.sleep if not depend(action, taken)}

    def advance(self) -> bool:
        """Go to the next action that does not sleep; the last one sleeps from now on. Whether there is one."""
        self.sleep.add(self.actions[self.taken])
        for number in range(self.taken + 1, len(self.actions)):
            if self.actions[number] not in self.sleep:
                self.taken = number
                return True
        return False


@dataclass
class Tally:
    """What an exploration did: complete schedules, runs that ended where all that was left slept, actions, the longest schedule.

    ``is_whole`` says that no schedule is left.
    """

    schedules: int = 0
    blocked: int = 0
    actions: int = 0
    longest: int = 0
    is_whole: bool = False
    failures: list[tuple[list[int], str]] = field(default_factory=list)


class WrongError(AssertionError):
    """A schedule showed what must not be."""


def explore(make: Callable[[], World], most: int, *, most_failures: int = 1) -> Tally:
    """Run schedules depth first until all are done, ``most`` are, or ``most_failures`` were wrong."""
    tally, stack = Tally(), list[Node]()
    while tally.schedules < most and len(tally.failures) < most_failures:
        try:
            if _run(make(), stack, tally):
                tally.schedules += 1
                tally.longest = max(tally.longest, len(stack))
            else:
                tally.blocked += 1
        except WrongError as error:
            tally.schedules += 1
            tally.failures.append(([node.taken for node in stack], str(error)))
        while stack and not stack[-1].advance():
            stack.pop()
        if not stack:
            tally.is_whole = True
            break
    return tally


def _run(world: World, stack: list[Node], tally: Tally) -> bool:
    """One run: along the stack, then by the first action that does not sleep. Whether it came to its end."""
    with closing(world):
        for node in stack:
            world.perform(node.actions[node.taken])
        tally.actions += len(stack)
        while actions := world.actions():
            sleep = stack[-1].child_sleep() if stack else set()
            first = next((number for number, action in enumerate(actions) if action not in sleep), None)
            if first is None:
                return False
            stack.append(Node(actions, sleep, first))
            tally.actions += 1
            world.perform(actions[first])
        world.finish()
    return True


def sample(make: Callable[[], World], seeds: Sequence[int], *, most_failures: int = 1) -> Tally:
    """Run a schedule drawn by lot for each seed, for worlds that have too many. The count is that of different ones."""
    tally, seen = Tally(), set[int]()
    for seed in seeds:
        draw, world, schedule = random.Random(seed), make(), list[int]()
        # Half of the walks stay with an actor for a while: that reaches deeper than a coin at every step does.
        patience = draw.choice((0.0, 0.0, 0.5, 0.8, 0.95))
        last = -1
        try:
            while actions := world.actions():
                own = [number for number, action in enumerate(actions) if action.actor == last and not action.budget]
                number = own[0] if own and draw.random() < patience else _drawn(draw, actions)
                schedule.append(number)
                last = actions[number].actor
                world.perform(actions[number])
            world.finish()
        except WrongError as error:
            tally.failures.append((schedule, str(error)))
        finally:
            world.close()
        seen.add(hash(tuple(schedule)))
        tally.actions += len(schedule)
        tally.longest = max(tally.longest, len(schedule))
        if len(tally.failures) >= most_failures:
            break
    tally.schedules = len(seen)
    return tally


def _drawn(draw: random.Random, actions: list[Action]) -> int:
    """An action by lot; what uses up a budget is drawn seldom, or every run would spend it in its first steps."""
    plain = [number for number, action in enumerate(actions) if not action.budget]
    if plain and (len(plain) == len(actions) or draw.random() < 0.95):
        return draw.choice(plain)
    return draw.choice([number for number, action in enumerate(actions) if action.budget])


def replay(make: Callable[[], World], schedule: Sequence[int]) -> Iterator[Action]:
    """Run one schedule again, and give its actions one by one; WrongError at its end if it is wrong."""
    with closing(make()) as world:
        for number in schedule:
            action = world.actions()[number]
            yield action
            world.perform(action)
        if not world.actions():
            world.finish()
