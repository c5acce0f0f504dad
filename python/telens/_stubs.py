"""Writes the type stub of telens.pytorch.modules from the core's own descriptions.

python -m telens._stubs python/telens/pytorch/modules.pyi
"""

from __future__ import annotations

import sys
from pathlib import Path

from telens import _C
from telens.pytorch.layers.arguments import (
    NeutralArgument,
    constructor_arguments,
    constructor_positions,
    forward_arguments,
    forward_positions,
)
from telens.pytorch.layers.attention_inputs import REPLACEABLE

_HEADER = """\
# Written by telens._stubs from core/modules; do not edit.
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from telens.pytorch.module import Module

"""


def stub_of_modules() -> str:
    """Returns the text of the stub."""
    names = sorted(module_type.name for module_type in _C.module_types())
    exported = "".join(f'    "{name}",\n' for name in names)
    classes = [_class(module_type) for module_type in _C.module_types()]
    return f"{_HEADER}__all__ = [\n{exported}]\n\n" + "\n".join(classes)


def _class(module_type: _C.ModuleType) -> str:
    lines = [f"class {module_type.name}(Module):", f'    """{module_type.doc}"""', ""]
    lines += [
        f"    {field.name}: {field.type}" for field in module_type.options if _is_attribute(field)
    ]
    if any(field.name == "bias" for field in module_type.options):
        lines += ["    use_bias: bool"]
    lines += ["    def __init__("]
    neutral = constructor_arguments(module_type.name)
    positions = constructor_positions(module_type.name)
    options = _arguments(module_type.options, neutral, positions)
    lines += [f"        {argument}," for argument in options]
    lines += ["    ) -> None: ...", "    def forward("]
    neutral, positions = forward_arguments(module_type.name), forward_positions(module_type.name)
    inputs = _arguments(module_type.inputs, neutral, positions)
    lines += [f"        {argument}," for argument in inputs]
    lines += ["    ) -> Any: ...", "    def __call__("]
    lines += [f"        {argument}," for argument in inputs]
    lines += ["    ) -> Any: ...", ""]
    return "\n".join(lines)


def _is_attribute(field: _C.FieldInfo) -> bool:
    # The instance gets these from the core; they are not its own parameters.
    placement = ("device", "params_dtype")
    return field.name not in ("bias", *placement) and not field.type.startswith("Callable")


def _arguments(
    fields: list[_C.FieldInfo], neutral: dict[str, NeutralArgument], positions: int
) -> list[str]:
    arguments = ["self"]
    replaceable = REPLACEABLE if "qkv_layer" in neutral else ()
    for place, field in enumerate(fields):
        if place == positions:
            arguments.append("*")
        default = "" if field.default is ... else f" = {field.default!r}".replace("'", '"')
        if field.name in replaceable:
            default = " | None = None"
        arguments.append(f"{field.name}: {field.type}{default}")
    if neutral and len(fields) <= positions:
        arguments.append("*")
    for each in neutral.values():
        default = repr(each.default).replace("'", '"')
        arguments.append(f"{each.name}: Any = {default}")
    return arguments


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(stub_of_modules())
