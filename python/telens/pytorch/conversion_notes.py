"""What ``convert`` did to the modules of a model, and why it left some alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed

from telens import _C
from telens.pytorch.module import Module

__all__ = ["ConversionReport", "conversion_report"]

_KEY = "_telens_conversion"

# So many names of a kind are printed; the report has all.
_MOST_NAMES = 3


class Converted(NamedTuple):
    """A module that was replaced: its name in the model, its class before and after."""

    name: str
    was: str
    now: str


class Left(NamedTuple):
    """A module that might have been replaced and was not."""

    name: str
    kind: str
    reason: str


@dataclass
class ConversionReport:
    """What ``convert`` replaced and what it left: linear layers, norms, matrices of other modules.

    converted
        tuples (name, was, now): the place in the model, the class before and after
    left
        tuples (name, kind, reason): the place, the class, and why it stayed
    """

    converted: list[Converted] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)

    def convert(self, module: torch.nn.Module, name: str, made: Module) -> None:
        """Notes a replacement."""
        self.converted.append(Converted(name, type(module).__name__, type(made).__name__))

    def leave(self, module: torch.nn.Module, name: str, reason: str) -> None:
        """Notes a module that stays."""
        self.left.append(Left(name, type(module).__name__, reason))

    def note_left(self, module: torch.nn.Module, name: str) -> None:
        """Notes a module of a class that is not replaced, if it multiplies or normalizes."""
        reason = reason_of_other_class(module)
        if reason:
            self.leave(module, name, reason)

    def __str__(self) -> str:
        kinds = Counter(
            each.was if each.was == each.now else f"{each.was} (to {each.now})"
            for each in self.converted
        )
        of = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        lines = [f"converted {len(self.converted)} modules" + (f": {of}" if of else "")]
        alike: dict[tuple[str, str], list[str]] = {}
        for each in self.left:
            alike.setdefault((each.kind, each.reason), []).append(each.name)
        for (kind, reason), names in alike.items():
            shown = ", ".join(name or "the model" for name in names[:_MOST_NAMES])
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            lines.append(f"left {shown}{more} ({kind}): {reason}")
        return "\n".join(lines)


def reason_of_other_class(module: torch.nn.Module) -> str:
    """Returns why a module of a class that convert does not know is left.

    "" if it is a module of TELens, or neither multiplies nor normalizes.
    """
    if isinstance(module, (Module, *_OTHERS)):
        return ""
    kind = type(module).__name__
    own = module._parameters
    if isinstance(module, torch.nn.Linear):
        return "a subclass of nn.Linear, which may compute something else"
    if "Norm" in kind and any(p is not None for p in own.values()):
        return "convert does not know its class"
    matrices = [key for key, p in own.items() if p is not None and p.dim() >= 2]
    if not matrices:
        return ""
    shape = list(own[matrices[0]].shape)
    return f"it multiplies by its parameter {matrices[0]} {shape} itself"


def conversion_report(model: torch.nn.Module) -> ConversionReport:
    """Returns what the last ``convert`` of this model did. Throws UsageError if there was none."""
    report = vars(model).get(_KEY)
    if report is None:
        raise _C.UsageError(
            f"conversion_report: this {type(model).__name__} was not given to "
            "telens.pytorch.convert"
        )
    return report


def keep_report(model: torch.nn.Module, report: ConversionReport) -> None:
    """Keeps the report with the model, and prints it on rank 0."""
    vars(model)[_KEY] = report
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        print("\n".join(f"telens.convert: {line}" for line in str(report).splitlines()))


# By the id of a parameter, the modules that have it as theirs, with their names.
Owners = dict[int, list[tuple[torch.nn.Module, str]]]


def parameters_by_owner(model: torch.nn.Module) -> Owners:
    """Who has which parameter; a tied one has several owners."""
    owners: Owners = {}
    for name, module in model.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append((module, name))
    return owners


# A module that looks up or slides its matrix has no GEMM that a linear layer could run.
_OTHERS = (
    torch.nn.Embedding,
    torch.nn.EmbeddingBag,
    torch.nn.modules.conv._ConvNd,
    torch.nn.modules.batchnorm._NormBase,
    torch.nn.GroupNorm,
)
