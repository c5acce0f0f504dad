"""Declared parameters of feature classes, and checks of their configuration."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from telens import _C
from telens.debug.arguments import nearest
from telens.debug.calls import GEMMS, TENSORS

__all__ = ["REQUIRED", "SCHEDULE", "Parameter"]

REQUIRED = object()

_TYPE_NAMES = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "a mapping",
}
# Selectors of GEMMs and tensors: valid names in a list, and the key of a struct's item.
_LISTS = {"gemms": GEMMS, "tensors": TENSORS}
_STRUCTS = {"gemms_struct": ("gemm", GEMMS), "tensors_struct": ("tensor", TENSORS)}
_SELECTION = (*_LISTS, *_STRUCTS)
# Minimum similarity for a key to count as a misspelled selector.
_LIKENESS = 0.8


@dataclass(frozen=True)
class Parameter:
    """A key of a feature class's configuration.

    ``type`` is bool, int, float (integers count), str, list or dict. Without a ``default`` the key
    is required, next to a struct or in each of its items.
    """

    name: str
    type: type
    default: Any = REQUIRED
    doc: str = ""

    def __post_init__(self) -> None:
        if self.type not in _TYPE_NAMES:
            raise _C.UsageError(
                f"Parameter {self.name!r}: type must be one of bool, int, float, str, list and "
                f"dict, not {self.type!r}"
            )

    def __str__(self) -> str:
        default = "required" if self.default is REQUIRED else f"default {self.default!r}"
        return f"  {self.name} ({_TYPE_NAMES[self.type]}, {default})\n      {self.doc}".rstrip()

    def fits(self, value: Any) -> bool:
        """Returns whether the value has the type, or is None and None is the default."""
        if value is None:
            return self.default is None
        if isinstance(value, bool) or self.type is bool:
            return isinstance(value, bool) and self.type is bool
        return isinstance(value, int | float if self.type is float else self.type)


# The schedule of a feature, for next_enabled_iter.
SCHEDULE = (
    Parameter("freq", int, default=1, doc="runs in iterations that it divides"),
    Parameter("start_step", int, default=0, doc="the first iteration"),
    Parameter("end_step", int, default=None, doc="the last iteration"),
    Parameter("start_end_list", list, default=None, doc="pairs of first and last, in their place"),
)


def described(documentation: str, parameters: Sequence[Parameter] | None) -> str:
    """The text that ``explain_features`` prints for a class with declared parameters."""
    if not parameters:
        return documentation
    return "\n".join([documentation, "", "Parameters:", *map(str, parameters)]).strip()


# Keys and indices that lead to a part of a feature's configuration.
Place = tuple[str | int, ...]


class ConfigCheck:
    """Checks the configuration of a feature class when it is loaded."""

    def __init__(
        self, feature: str, parameters: Sequence[Parameter] | None, selects_by_name: bool
    ) -> None:
        self._feature = feature
        self._parameters = parameters
        self._selects_by_name = selects_by_name

    def checked(self, config: dict) -> dict:
        """Returns the configuration with defaults filled in. Raises UsageError."""
        self._check_keys(config, (), ())
        for parameter in self._parameters or ():
            if parameter.default is REQUIRED and not _is_given(config, parameter.name):
                expected = _expected(parameter)
                raise self._error((), f"'{parameter.name}' is missing; it must be {expected}")
        defaults = {
            each.name: each.default
            for each in self._parameters or ()
            if each.default is not REQUIRED
        }
        return defaults | config

    def _check_keys(self, config: dict, place: Place, own: tuple[str, ...]) -> None:
        declared = {each.name: each for each in self._parameters or ()}
        for key, value in config.items():
            if key in declared:
                if not declared[key].fits(value):
                    text = f"'{key}' is wrong; it must be {_expected(declared[key])}, not {value!r}"
                    raise self._error(place, text, key)
            elif self._selects_by_name and key in _SELECTION:
                self._check_selection(key, value, place)
            elif key not in own and key != "enabled":
                self._check_other_key(key, place, [*declared, *own])
        if own and "enabled" in config:
            text = "'enabled' is not allowed here; put it next to the struct"
            raise self._error(place, text, "enabled")

    def _check_other_key(self, key: str, place: Place, known: list[str]) -> None:
        if self._selects_by_name:
            known = [*known, *_SELECTION]
        if self._parameters is not None:
            takes = ", ".join(map(repr, known)) or "none"
            text = f"unknown key '{key}'{nearest(key, known)}; it takes {takes}"
            raise self._error(place, text, key)
        near = difflib.get_close_matches(key, _SELECTION, 1, _LIKENESS)
        if self._selects_by_name and near:
            raise self._error(place, f"unknown key '{key}' (did you mean '{near[0]}'?)", key)

    def _check_selection(self, key: str, value: Any, place: Place) -> None:
        inside = (*place, key)
        if key in _LISTS:
            for index, name in enumerate(_listed(value)):
                self._check_name(inside, name, _LISTS[key], index)
            return
        own, names = _STRUCTS[key]
        for index, item in enumerate(_listed(value)):
            at = (*inside, index)
            if not isinstance(item, dict) or own not in item:
                raise self._error(at, f"expected a mapping with '{own}', not {item!r}")
            self._check_name((*at, own), item[own], names)
            self._check_keys(item, at, (own,))

    def _check_name(
        self, place: Place, name: Any, names: tuple[str, ...], *deeper: str | int
    ) -> None:
        if name not in names:
            text = f"{name!r} is none of {', '.join(names)}{nearest(name, names)}"
            raise self._error(place, text, *deeper)

    def _error(self, place: Place, text: str, *deeper: str | int) -> _C.ConfigError:
        """``deeper``: the path from the named place to the error."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
        where = "".join(steps).lstrip(".")
        error = _C.ConfigError(f"feature '{self._feature}'{', ' if where else ''}{where}: {text}")
        error.place = (*place, *deeper)  # the session turns it into file, line and column
        return error


def _expected(parameter: Parameter) -> str:
    return _TYPE_NAMES[parameter.type]


def _is_given(config: dict, name: str) -> bool:
    if name in config:
        return True
    items = [item for struct in _STRUCTS for item in _listed(config.get(struct, []))]
    return bool(items) and all(_is_given(item, name) for item in items)


def _listed(value: Any) -> list:
    """A single value is treated as a list with one item."""
    return value if isinstance(value, list) else [value]
