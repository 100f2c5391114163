"""Values, recipes, and what is missing around a value, as `engine_model` has them: the paper's
neighbourhoods (section 4.1, appendix C.2), walked naively from the graph each time."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.models import pool_model

MASK = (1 << 64) - 1

NEAR_LINEAGE, BEYOND = 48, 4
"""Of a longer lineage the nearest values count, so many times."""
CROWDING = 2000
"""Nanoseconds, times the square of how many values a lineage has."""


def rounded(size: int) -> int:
    return max(-(-size // pool_model.GRANULE), 1) * pool_model.GRANULE


def content_of(name: int, inputs: Sequence[int], result: int) -> int:
    number = (name * 0x9E3779B97F4A7C15 + result) & MASK
    for content in inputs:
        number = ((number ^ content) * 0x100000001B3 + 1) & MASK
    return number


@dataclass(eq=False)
class Content:
    number: int
    offset: int


@dataclass(eq=False)
class Value:
    """Without a recipe it is a constant."""

    size: int
    content: Content | None
    recipe: "Recipe | None" = None
    home: int | None = None
    """The id of the storage that holds it; None once the program let it go."""
    readers: "list[Recipe]" = field(default_factory=list)
    """One entry for each place that reads it."""
    evicted_class: "EvictedClass | None" = None
    node: "Node | None" = None
    last_access: int = 0
    order: int = 0
    """When it last became evictable."""
    locks: int = 0
    waiting: int = 0
    """Of the locks, those of recomputations whose turn has not come."""
    dropped_while_locked: bool = False
    stone: bool = False
    """Dropped, and it stays (stepping_stones.h)."""
    recomputes: int = 0


@dataclass(eq=False)
class Recipe:
    name: int
    cost: int
    inputs: list[Value]
    outputs: list[Value | None]
    """None where the value is frozen or gone."""


@dataclass(eq=False)
class EvictedClass:
    """Missing values that touch, or did when they got lost: it is never split."""

    members: set[Value]
    cost: int


@dataclass(eq=False)
class Node:
    """Of MegEngine's union-find."""

    cost: int
    parent: "Node | None" = None

    def root(self) -> "Node":
        if self.parent is None:
            return self
        self.parent = self.parent.root()
        return self.parent


def number_of(value: Value) -> int:
    assert value.content is not None
    return value.content.number


def inputs_of(value: Value) -> list[Value]:
    return value.recipe.inputs if value.recipe else []


def made_from(value: Value) -> list[Value]:
    return [output for reader in value.readers for output in reader.outputs if output]


def neighbours(value: Value) -> list[Value]:
    return [*inputs_of(value), *made_from(value)]


def missing_beside(value: Value) -> list[Value]:
    """What MegEngine looks at: inputs, each time that they are read, and other results."""
    assert value.recipe is not None
    near = [*value.recipe.inputs, *(output for output in value.recipe.outputs if output)]
    return [one for one in near if one is not value and one.content is None]


def neighbourhood_cost(kind: str, value: Value) -> int:
    if kind == "megengine":
        assert value.recipe is not None
        return sum(cost_in_set(near) for near in missing_beside(value)) - value.recipe.cost
    if kind == "eqclass":
        return classes_cost([value])
    if kind == "lineage":
        return lineage_cost(value)
    backward = missing_around(value, inputs_of) if kind != "none" else 0
    return backward + (missing_around(value, made_from) if kind == "full" else 0)


def classes_cost(values: Sequence[Value]) -> int:
    """Of the evicted classes beside these values, each counted once."""
    classes = {near.evicted_class for value in values for near in neighbours(value)}
    return sum(one.cost for one in classes if one)


def lineage_cost(value: Value) -> int:
    """Of what is missing, the fewest operators away first."""
    met: list[Value] = []
    for at in itertools.chain([value], met):
        for near in inputs_of(at):
            if near.content is not None or near in met:
                continue
            if len(met) == NEAR_LINEAGE:
                return BEYOND * together(met)
            met.append(near)
    return together(met)


def together(lineage: Sequence[Value]) -> int:
    """What it takes to have them all again."""
    return cost_of(lineage) + CROWDING * len(lineage) ** 2


def cost_of(values: Sequence[Value]) -> int:
    """Of their recipes."""
    return sum(value.recipe.cost for value in values if value.recipe)


def node_of(value: Value) -> Node:
    assert value.recipe is not None
    value.node = value.node or Node(value.recipe.cost)
    return value.node


def cost_in_set(value: Value) -> int:
    assert value.recipe is not None
    return max(value.node.root().cost, value.recipe.cost) if value.node else value.recipe.cost


def missing_around(value: Value, towards: Callable[[Value], list[Value]]) -> int:
    """What `all_missing` costs."""
    return sum(other.recipe.cost for other in all_missing(value, towards) if other.recipe)


def all_missing(value: Value, towards: Callable[[Value], list[Value]]) -> list[Value]:
    """All that is missing and reached through what is missing."""
    reached: dict[Value, None] = {}
    frontier = [value]
    while frontier:
        for other in towards(frontier.pop()):
            if other.content is None and other not in reached:
                reached[other] = None
                frontier.append(other)
    return list(reached)
