"""Replaces the linear layers and norms of torch and Hugging Face in any model by TELens's."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed

from telens import _C
from telens._names import refusal
from telens.common.recipe import Recipe
from telens.pytorch.checkpoints.stored_histories import states_in
from telens.pytorch.hugging_face.replaced_modules import formula_of
from telens.pytorch.module import Module
from telens.pytorch.modules import LayerNorm, Linear, RMSNorm

__all__: list[str] = ["ConversionReport", "conversion_report", "convert"]

_KEY = "_telens_conversion"

# Maximum number of names per kind that are printed. The report contains all.
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
    """Modules that ``convert`` replaced or left: linear layers, norms, other modules with matrices.

    converted
        tuples (name, was, now): the place in the model, the class before and after
    left
        tuples (name, kind, reason): the place, the class, and why it was not replaced
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
    """Returns the report of the model's last ``convert``. Raises UsageError if there is none."""
    report = vars(model).get(_KEY)
    if report is None:
        raise _C.UsageError(
            f"conversion_report: this {type(model).__name__} was not given to "
            "telens.pytorch.convert"
        )
    return report


def keep_report(model: torch.nn.Module, report: ConversionReport) -> None:
    """Stores the report with the model, and prints it on rank 0."""
    from telens.debug import layer_names  # telens.debug imports this package

    vars(model)[_KEY] = report
    for each in report.left:
        layer_names.note_left(f"{each.kind}: {each.reason}")
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        print("\n".join(f"telens.convert: {line}" for line in str(report).splitlines()))


# Modules that own a parameter, with their names, by the parameter's id.
Owners = dict[int, list[tuple[torch.nn.Module, str]]]


def parameters_by_owner(model: torch.nn.Module) -> Owners:
    """Returns the modules that own each parameter; a tied one has several."""
    owners: Owners = {}
    for name, module in model.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append((module, name))
    return owners


# Embeddings, convolutions and batch norms run no GEMM that a linear layer could replace.
_OTHERS = (
    torch.nn.Embedding,
    torch.nn.EmbeddingBag,
    torch.nn.modules.conv._ConvNd,
    torch.nn.modules.batchnorm._NormBase,
    torch.nn.GroupNorm,
)

Filter = Callable[[torch.nn.Module, str], bool]


def convert(
    model: torch.nn.Module, filter: Filter | None = None, recipe: Recipe | None = None
) -> torch.nn.Module:
    """Replaces linear layers and norms by TELens's, prints what it did, returns the model.

    It converts ``nn.Linear``, ``nn.LayerNorm`` and ``nn.RMSNorm``, and of Hugging Face's
    transformers ``Conv1D`` and every norm whose own forward computes RMSNorm with ``weight`` or
    ``1 + weight``. Two kinds of linear layers stay as they are, so that the converted model runs in
    FP8:

    * output heads, whose GEMM computes the logits and usually stays in high precision: a linear
      layer that ``get_output_embeddings()`` returns, that shares its weight with another module,
      that has as many outputs as the embedding of words has rows, or that is the last one of the
      model and is or belongs to a module called ``head`` or ``*_head``. In a numbered block only a
      layer of such a name counts as one
    * layers whose dimensions FP8 GEMMs do not support: they must be multiples of 16, or of 32 for
      MXFP8. Without ``recipe`` the recipe of the training is unknown, and the multiple is 16, which
      all recipes except MXFP8 support

    ``conversion_report(model)`` lists converted modules, and unchanged ones with the reason.
    ``telens.summary(model)`` shows the precision of each layer.

    The parameters stay the same objects, so optimizers, tied weights and checkpoints keep working;
    pruned modules stay pruned. Subclasses of the classes above are unchanged, since they may
    compute something else (such as the projections inside ``nn.MultiheadAttention``).

    ``nn.TransformerEncoderLayer`` has a fused kernel for evaluation that reads its children's
    weights without calling them. It is switched off if a child was replaced, so that evaluation
    runs the modules that training runs.

    Parameters
    ----------
    model
        any module; if it is itself one of those, its replacement is returned
    filter
        ``filter(module, name)`` returns whether to replace a module. If it returns True, output
        heads are converted too. Layers with other dimensions are unchanged
    recipe
        the recipe of the training. Layers with dimensions that it does not support are unchanged
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"convert: model must be a torch.nn.Module, not {type(model).__name__}")
    if filter is not None and not callable(filter):
        raise refusal("convert", "filter", "a function of (module, name)", filter)
    if recipe is not None and not isinstance(recipe, Recipe):
        raise refusal("convert", "recipe", "a recipe of telens.common.recipe", recipe)
    conversion = _Conversion(model, filter, recipe)
    converted = conversion.run()
    keep_report(converted, conversion.report)
    _warn_of_states_left_behind(converted)
    return converted


def _warn_of_states_left_behind(model: torch.nn.Module) -> None:
    """Warns if the model comes from a checkpoint whose FP8 state from_pretrained did not read."""
    folder = getattr(getattr(model, "config", None), "_name_or_path", None)
    if not isinstance(folder, str) or not os.path.isdir(folder):
        return
    try:
        count = sum(1 for _ in states_in(folder))
    except Exception:  # no checkpoint, or none that can be read: nothing is known to be lost
        return
    if count:
        warnings.warn(
            f"convert: the checkpoint {folder} has amax histories and scales of {count} layers, "
            "which from_pretrained has left out; telens.pytorch.load_fp8_state(model, "
            f"{folder!r}) restores them, without it they start empty",
            UserWarning,
            stacklevel=3,
        )


# Both dimensions of a weight must be a multiple of this, except under MXFP8.
MULTIPLE = 16


class Candidates:
    """Decides which modules of a model ``convert`` replaces, and why it leaves others."""

    def __init__(
        self, model: torch.nn.Module, filter: Filter | None = None, recipe: Recipe | None = None
    ) -> None:
        self._filter = filter
        self._multiple = MULTIPLE if recipe is None else recipe._row_multiple
        self._heads = _output_heads(model)
        self.owners = parameters_by_owner(model)

    def refusal(self, module: torch.nn.Module, name: str) -> str:
        """Returns why a module of a class that convert knows is left; "" if it is replaced."""
        if self._filter is None:
            head = self._head_reason(module)
            if head:
                return f"an output head: {head}; a filter= that returns True converts it"
        elif not self._filter(module, name):
            return "filter"
        if "forward" in module.__dict__:
            return "its forward was replaced on the object"
        return self._shape_reason(module)

    def _head_reason(self, module: torch.nn.Module) -> str:
        if not is_linear(module):
            return ""
        weight = module._parameters.get("weight")
        others = [n for owner, n in self.owners.get(id(weight), []) if owner is not module]
        if others:
            return f"it shares its weight with {others[0]}"
        return self._heads.get(id(module), "")

    def _shape_reason(self, module: torch.nn.Module) -> str:
        weight = module._parameters.get("weight", getattr(module, "weight", None))
        if not is_linear(module) or weight is None or torch.nn.parameter.is_lazy(weight):
            return ""
        if all(size % self._multiple == 0 for size in weight.shape):
            return ""
        return f"weight {list(weight.shape)}: FP8 GEMMs need multiples of {self._multiple}"


class _Conversion:
    def __init__(
        self, model: torch.nn.Module, filter: Filter | None, recipe: Recipe | None
    ) -> None:
        self._model = model
        self._candidates = Candidates(model, filter, recipe)
        self._done: dict[int, torch.nn.Module] = {}  # one replacement for each module object
        self.report = ConversionReport()

    def run(self) -> torch.nn.Module:
        for parent_name, parent in list(self._model.named_modules()):
            if isinstance(parent, Module):
                continue  # its children are TELens's already, or the user's own choice
            for name, child in list(parent._modules.items()):
                if child is None:
                    continue
                made = self._replacement(child, f"{parent_name}.{name}".lstrip("."))
                setattr(parent, name, made)
                if made is not child and isinstance(parent, torch.nn.TransformerEncoderLayer):
                    # The condition of torch's fast path.
                    parent.activation_relu_or_gelu = 0
        for module in self._model.modules():
            if isinstance(module, torch.nn.TransformerEncoder) and any(
                isinstance(child, Module) for child in module.layers.modules()
            ):
                module.use_nested_tensor = False  # only the fast path takes nested tensors
        return self._replacement(self._model, "")

    def _replacement(self, module: torch.nn.Module, name: str) -> torch.nn.Module:
        if id(module) not in self._done:
            self._done[id(module)] = self._made(module, name) or module
        return self._done[id(module)]

    def _made(self, module: torch.nn.Module, name: str) -> Module | None:
        make = maker_of(module)
        if make is None:
            self.report.note_left(module, name)
            return None
        refused = self._candidates.refusal(module, name)
        if refused:
            self.report.leave(module, name, refused)
            return None
        made, reason = make(module)
        if made is None:
            self.report.leave(module, name, reason)
            return None
        for hooks in _HOOKS:
            getattr(made, hooks).update(getattr(module, hooks))
        made._is_full_backward_hook = module._is_full_backward_hook
        made.train(module.training)
        self.report.convert(module, name, made)
        return made


_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
)

# A replacement, or None and why there is none.
_Made = tuple[Module | None, str]


def is_linear(module: torch.nn.Module) -> bool:
    """Whether convert replaces the module by a layer with a GEMM, if anything."""
    return isinstance(module, torch.nn.Linear) or _is_conv1d(module)


def _is_of_transformers(module: torch.nn.Module) -> bool:
    # Also classes that came with a checkpoint (transformers_modules).
    return type(module).__module__.partition(".")[0] in ("transformers", "transformers_modules")


def _is_conv1d(module: torch.nn.Module) -> bool:
    # Compares names, so that transformers need not be imported.
    return (type(module).__module__, type(module).__name__) == (
        "transformers.pytorch_utils",
        "Conv1D",
    )


_HEAD = re.compile(r"(^|_)heads?$")
# Embeddings whose rows are places, not words.
_OF_PLACES = re.compile(r"pos|relative|(^|[._])w?pe$")


def _output_heads(model: torch.nn.Module) -> dict[int, str]:
    """Returns how each output head was recognized, by the id of the module."""
    heads = {}
    for module in model.modules():
        if not callable(getattr(module, "get_output_embeddings", None)):
            continue
        with contextlib.suppress(NotImplementedError, AttributeError):  # a model without one
            head = module.get_output_embeddings()
            if head is not None:
                heads[id(head)] = "get_output_embeddings() returns it"
    linears = [(name, module) for name, module in model.named_modules() if is_linear(module)]
    words = _vocabulary_size(model)
    last = True  # whether only heads follow
    for name, module in reversed(linears):
        parts = name.split(".")
        is_named = any(_HEAD.search(part) for part in parts)
        outputs = module.nf if _is_conv1d(module) else module.out_features
        # Layers of a block may have as many outputs by chance.
        in_block = any(part.isdigit() for part in parts) and not (is_named or last)
        of_words = outputs == words and module is not model and not in_block
        if is_named and (last or of_words):
            heads.setdefault(id(module), "its name says so")
        elif of_words:
            reason = f"it has {outputs} outputs, and an embedding as many rows"
            heads.setdefault(id(module), reason)
        # One more linear layer inside of a module with the name of a head is not a head itself.
        last = last and _HEAD.search(parts[-1]) is not None
    return heads


def _vocabulary_size(model: torch.nn.Module) -> int:
    """Returns the number of rows of the largest token embedding, 0 without an embedding.

    If all embeddings are named like position embeddings, they count as token embeddings.
    """
    rows = {
        name: module.num_embeddings
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding)
    }
    of_words = [count for name, count in rows.items() if not _OF_PLACES.search(name)]
    return max(of_words or rows.values(), default=0)


def maker_of(module: torch.nn.Module) -> Callable[[torch.nn.Module], _Made] | None:
    """Returns the function that builds the replacement, or None if the class is unknown."""
    if type(module) in _MAKERS:
        return _MAKERS[type(module)]
    if _is_conv1d(module):
        return _conv1d
    if _is_of_transformers(module) and "Norm" in type(module).__name__:
        is_one = set(module._parameters) == {"weight"} and not module._buffers
        return _rms_norm_of_transformers if is_one and not module._modules else None
    return None


def _linear(module: torch.nn.Linear) -> _Made:
    made = Linear(
        module.in_features,
        module.out_features,
        bias=module.bias is not None,
        params_dtype=module.weight.dtype,
        device="meta",
    )
    return _with_tensors_of(module, made), ""


def _conv1d(module: torch.nn.Module) -> _Made:
    from telens.pytorch.hugging_face.replaced_modules import Conv1D

    made = Conv1D(module.nf, module.nx, params_dtype=module.weight.dtype, device="meta")
    return _with_tensors_of(module, made), ""


def _layer_norm(module: torch.nn.LayerNorm) -> _Made:
    if not module.elementwise_affine or module.bias is None:
        return None, "it lacks weight and bias, which TELens's module always has"
    made = LayerNorm(
        list(module.normalized_shape),
        eps=module.eps,
        params_dtype=module.weight.dtype,
        device="meta",
    )
    return _with_tensors_of(module, made), ""


def _rms_norm(module: torch.nn.RMSNorm) -> _Made:
    if not module.elementwise_affine:
        return None, "it lacks a weight, which TELens's module always has"
    # torch's default is the epsilon of the input's dtype; the parameter's is the nearest to it.
    eps = torch.finfo(module.weight.dtype).eps if module.eps is None else module.eps
    made = RMSNorm(
        list(module.normalized_shape), eps=eps, params_dtype=module.weight.dtype, device="meta"
    )
    return _with_tensors_of(module, made), ""


def _rms_norm_of_transformers(module: torch.nn.Module) -> _Made:
    formula = formula_of(module)
    if formula is None:
        return None, "its forward is not RMSNorm with weight or 1 + weight"
    made = RMSNorm(
        list(module.weight.shape),
        eps=formula.eps,
        zero_centered_gamma=formula.zero_centered,
        params_dtype=module.weight.dtype,
        device="meta",
    )
    return _with_tensors_of(module, made), ""


def _with_tensors_of(module: torch.nn.Module, made: Module) -> Module:
    """Gives ``made`` all tensors of ``module``.

    In a pruned module ``weight_orig`` is a parameter, ``weight_mask`` a buffer, and ``weight`` an
    attribute that a hook computes from them.
    """
    made._parameters.clear()
    made._parameters.update(module._parameters)
    made._buffers.update(module._buffers)
    made._non_persistent_buffers_set.update(module._non_persistent_buffers_set)
    computed = {"weight", "bias"} & module.__dict__.keys()
    made.__dict__.update({name: module.__dict__[name] for name in computed})
    return made


_MAKERS: dict[type, Callable[[torch.nn.Module], _Made]] = {
    torch.nn.Linear: _linear,
    torch.nn.LayerNorm: _layer_norm,
    torch.nn.RMSNorm: _rms_norm,
}
