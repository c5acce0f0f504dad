"""The list of incidents."""

from __future__ import annotations

import dataclasses
import pathlib
import re

import yaml

FILE = pathlib.Path(__file__).with_name("incidents.yaml")
WITHIN = 2  # largest difference of a correct first iteration from the expected one
FIRST = 3  # number of findings that are judged


@dataclasses.dataclass(frozen=True)
class Expected:
    causes: tuple[str, ...]
    layer: str | None
    tensor: tuple[str, ...] | None
    first: int | None

    def parts_of(self, finding: dict) -> dict[str, bool]:
        """Returns for each part of a finding whether it is correct."""
        layer = finding["layer"] or ""
        first = finding["first_iteration"]
        return {
            "cause": finding["cause"] in self.causes,
            "layer": self.layer is None or re.fullmatch(self.layer, layer) is not None,
            "tensor": self.tensor is None or finding["tensor"] in self.tensor,
            "first": self.first is None or abs(first - self.first) <= WITHIN,
        }


@dataclasses.dataclass(frozen=True)
class Incident:
    source: str
    kind: str
    model: str
    what: str
    expected: Expected
    ranks: int = 1
    moved: bool = False  # to the tuned half, because a rule was changed for it

    @property
    def is_blind(self) -> bool:
        return int(self.source[-1]) % 2 == 1 and not self.moved

    @property
    def folder(self) -> str:
        return self.source.replace("/", "-").replace("#", "-").lower()


def read_incidents() -> list[Incident]:
    incidents = []
    for entry in yaml.safe_load(FILE.read_text()):
        expected = entry.pop("expected")
        tensor = expected["tensor"]
        incidents.append(
            Incident(
                **entry,
                expected=Expected(
                    tuple(expected["causes"]),
                    expected["layer"],
                    tuple(tensor) if tensor else None,
                    expected["first"],
                ),
            )
        )
    return incidents
