"""Names of layers from the structure of a model."""

from __future__ import annotations

import gc
import logging
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from telens import _C
from telens._load import has_core
from telens.debug import model_state
from telens.debug.arguments import refusal
from telens.debug.model_state import NamedModule

__all__ = ["infer_and_assign_layer_names"]


@dataclass(frozen=True)
class LayerTree:
    """The layer classes of a framework. Its layers have ``named_children()``."""

    layer: type  # base class of the layers
    layer_name: str  # the name that users write
    layer_list: type  # children are numbered
    own_layer: type  # layers of this package: named by set_debug_name
    name_attribute: str  # where others get their name
    is_linear: Callable[[Any], bool]  # returns whether a layer of another library is linear


def _is_linear_of_torch(module: torch.nn.Module) -> bool:
    names = (type(module).__module__, type(module).__name__)
    is_conv1d = names == ("transformers.pytorch_utils", "Conv1D")
    return isinstance(module, torch.nn.Linear) or is_conv1d


# telens.paddle adds Paddle's.
TREES = [
    LayerTree(
        layer=torch.nn.Module,
        layer_name="torch.nn.Module",
        layer_list=torch.nn.ModuleList,
        own_layer=NamedModule,
        name_attribute="name",
        is_linear=_is_linear_of_torch,
    )
]


def infer_and_assign_layer_names(
    model: torch.nn.Module | Iterable[torch.nn.Module], *, keep_names: bool = False
) -> None:
    """Names every module by its path: ``model``, then attribute names, joined by dots.

    A child of a ``ModuleList`` is named by its ``layer_number`` if it has one, else by its index. A
    list of models (chunks of a pipeline) is named as one model would be. After ``import
    telens.paddle`` models of Paddle are named likewise. With ``keep_names``, layers of this package
    keep an existing name, and their children are named after it.

    A ``PrecisionLedger`` also lists the model's linear layers from other packages: in the running
    session or the next one, and, while the model exists, in later sessions for which no model is
    named.
    """
    models = [model]
    if _tree_of(model) is None and isinstance(model, Iterable):
        models = list(model)
    for each in models:
        if _tree_of(each) is None:
            expected = f"a {' or '.join(tree.layer_name for tree in TREES)} or several of them"
            raise refusal("debug.infer_and_assign_layer_names", "model", expected, each)
    assign_layer_names(models, "model", keep_names=keep_names)


def assign_layer_names(
    models: Iterable[torch.nn.Module], root: str, *, keep_names: bool = False
) -> None:
    """``infer_and_assign_layer_names`` with another name than "model" in front."""
    _forget_models_of_ended_session()
    logs = _C.debug.is_initialized()
    for each in models:
        tree = _tree_of(each)
        for layer, name in _named(tree, each, root, keep_names):
            if logs:  # the line by which tools of nvdlfw_inspect find a model's layers
                _C.debug.log_message(f"Assigned layer name: {name}", "", logging.INFO, "")
            model_state.note_module(layer, name)
            if isinstance(layer, tree.own_layer):
                layer.set_debug_name(name)
                continue
            setattr(layer, tree.name_attribute, name)
            if tree.is_linear(layer):
                _foreign.append(weakref.ref(layer))
                _named_plain[name] = _kind(layer)
    _tell_of_foreign_layers()


# Linear layers of other libraries in models that were named.
_foreign: list[weakref.ref[Any]] = []
# True if those models belong to a session that has ended, and to none that runs.
_are_of_ended_session = False


# Linear layers of torch that ran under run_as_te, by class; and the classes of those that were
# named, by name: the layers may be gone by the end of the session.
_ran_plain: Counter[str] = Counter()
_named_plain: dict[str, str] = {}


# Reasons why conversions did not replace a module, with their counts.
_left: Counter[str] = Counter()
_watched: list[str] = []  # class name of the model of telens.watch

# Number of reasons that a message quotes.
_MOST = 3


def note_left(reason: str) -> None:
    """Counts a module that was not converted, for the report of a session without a layer."""
    _left[reason] += 1


def forget_left() -> None:
    """Forgets the reasons of ``note_left``."""
    _left.clear()


def note_watched(model: torch.nn.Module) -> None:
    """Names the model of ``telens.watch`` for the report of a session that observed no layer."""
    _watched[:] = [type(model).__name__]


def note_plain_layers(modules: Iterable[torch.nn.Module]) -> None:
    """Modules of a model that ran, for the report of a session that observed no layer."""
    _ran_plain.update(_kind(each) for each in modules if _is_plain_linear(each))


def no_layer_message() -> str:
    """Returns the message for the end of a session in which no TELens layer ran."""
    if _watched:
        return (
            f"telens.watch: no forward of the watched {_watched[0]} was recorded. Train this "
            "object, not a copy of it; forwards in eval mode without gradients are not recorded"
        )
    message = "no layer of TELens ran in this session, so none was watched"
    if _ran_plain:
        message += f": {_counted(_ran_plain)} ran instead"
    elif _named_plain:
        message += f": the named model has {_counted(Counter(_named_plain.values()))}"
    else:
        alive = (each for each in gc.get_objects() if issubclass(type(each), torch.nn.Linear))
        found = Counter(_kind(each) for each in alive if _is_plain_linear(each))
        message += f": the program has {_counted(found)}" if found else ""
    if _left:
        shown = [f"{reason} ({count} modules)" for reason, count in _left.most_common(_MOST)]
        more = f", and {len(_left) - _MOST} other reasons" if len(_left) > _MOST else ""
        return f"{message}; telens.pytorch.convert did not convert: {'; '.join(shown)}{more}"
    if not has_core():
        return f"{message}; call telens.watch(model) once the model is built"
    return (
        f"{message}; call telens.pytorch.convert(model) once the model is built, or start the "
        "script with `python -m telens.run_as_te --convert`. To record the model without FP8: "
        "`telens run`"
    )


def _is_plain_linear(module: torch.nn.Module) -> bool:
    return TREES[0].is_linear(module) and not isinstance(module, TREES[0].own_layer)


def _kind(layer: Any) -> str:
    package = type(layer).__module__.partition(".")[0]
    return f"{'torch.nn' if package == 'torch' else package}.{type(layer).__name__}"


def _counted(kinds: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())


def note_beginning() -> None:
    """Called when a session has begun. It keeps the models of the previous session unless a model
    is named in it."""
    if not _are_of_ended_session:
        _tell_of_foreign_layers()


def note_step() -> None:
    """Called at a step or the end of a session. If no model was named in it, it has the models of
    the previous session."""
    global _are_of_ended_session
    if _are_of_ended_session and _C.debug.is_initialized():
        _are_of_ended_session = False
        _tell_of_foreign_layers()


def note_end() -> None:
    """Called when a session has ended."""
    global _are_of_ended_session
    _are_of_ended_session = True
    _ran_plain.clear()
    _watched.clear()
    forget_left()


def _forget_models_of_ended_session() -> None:
    global _are_of_ended_session
    if _are_of_ended_session:
        _foreign.clear()
        _named_plain.clear()
    _are_of_ended_session = False


def _tell_of_foreign_layers() -> None:
    """Reports linear layers of other libraries to the session. They make no calls to features."""
    _foreign[:] = {id(module): ref for ref in _foreign if (module := ref()) is not None}.values()
    for layer in (ref() for ref in _foreign):
        tree = _tree_of(layer)
        name = None if tree is None else getattr(layer, tree.name_attribute)
        if isinstance(name, str):
            kind = f"{type(layer).__module__.partition('.')[0]}'s {type(layer).__name__}"
            _C.debug.note_foreign_layer(name, kind)


def _tree_of(model: Any) -> LayerTree | None:
    return next((tree for tree in TREES if isinstance(model, tree.layer)), None)


def _named(tree: LayerTree, layer: Any, name: str, keep: bool) -> Iterator[tuple[Any, str]]:
    if keep and isinstance(layer, tree.own_layer):
        name = layer.name or name
    # Parents first, because setting a parent's name also sets its children's. These names are
    # replaced here.
    yield layer, name
    for key, child in layer.named_children():
        number = getattr(child, "layer_number", None)
        by_number = isinstance(layer, tree.layer_list) and number is not None
        yield from _named(tree, child, f"{name}.{number if by_number else key}", keep)
