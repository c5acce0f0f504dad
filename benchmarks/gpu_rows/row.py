"""A row of the table: what is measured against which peer, the target, and how it came out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_rows.bench import Bench


class CannotRun(Exception):
    """This build or this machine has not what a row needs; the message says what."""


@dataclass(frozen=True)
class Target:
    """By the card's name where cards differ; a card that is not named has no target."""

    value: float | dict[str, float]
    at_least: bool = True

    def of(self, card: str) -> float | None:
        if isinstance(self.value, dict):
            return next((value for name, value in self.value.items() if name in card), None)
        return self.value

    def is_met(self, value: float, card: str) -> bool | None:
        target = self.of(card)
        if target is None:
            return None
        return value >= target if self.at_least else value <= target

    def __str__(self) -> str:
        relation = ">=" if self.at_least else "<="
        if isinstance(self.value, dict):
            return ", ".join(f"{name} {relation} {each:g}" for name, each in self.value.items())
        return f"{relation} {self.value:g}"


def at_least(value: float | dict[str, float]) -> Target:
    return Target(value)


def at_most(value: float) -> Target:
    return Target(value, at_least=False)


@dataclass
class Measured:
    """Of the same work: medians in seconds, or whatever Row.unit says."""

    ours: float
    theirs: float
    rate: str = ""
    details: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    name: str
    peer: str
    measure: Callable[[Bench], Measured]
    target: Target | None = None
    of_time: bool = False  # the value is our time over the peer's, not our speed over the peer's
    unit: str = "seconds"

    def value(self, measured: Measured) -> float:
        if self.of_time:
            return measured.ours / measured.theirs
        return measured.theirs / measured.ours

    def described(self) -> dict:
        return {
            "name": self.name,
            "peer": self.peer,
            "value_is": "of the peer's time" if self.of_time else "of the peer's speed",
            "target": None if self.target is None else str(self.target),
        }
