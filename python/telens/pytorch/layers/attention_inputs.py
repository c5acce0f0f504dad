"""Inputs of DotProductAttention that are not plain tensors: packed heads and ``score_mod``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from telens import _C
from telens._names import refusal

__all__: list[str] = [
    "ARGUMENTS",
    "REPLACEABLE",
    "ScoreGraph",
    "ScoreTensor",
    "is_packed",
    "unpacked",
    "with_score_mod",
]

# The arguments that a packed tensor replaces.
REPLACEABLE = ("query_layer", "key_layer", "value_layer")
_PARTS = {"qkv_layer": 3, "kv_layer": 2}
_INTERLEAVE = "qkv_interleave_dim"


def is_packed(arguments: dict[str, Any]) -> bool:
    """Whether a call of DotProductAttention gives one of the packed tensors."""
    return any(arguments.get(name) is not None for name in _PARTS)


def unpacked(
    owner: str, args: tuple[Any, ...], arguments: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments with query_layer, key_layer and value_layer as views of the packed
    tensor.

    ``qkv_layer`` is [..., 3, heads, size] and replaces all three, ``kv_layer`` [..., 2, groups,
    size] replaces key and value; with ``qkv_interleave_dim=-2`` they are [..., heads, 3, size] and
    [..., groups, 2, size]. ``qkv_format`` names the dimensions in front.
    """
    arguments = dict(arguments)
    given = [name for name in _PARTS if arguments.get(name) is not None]
    if len(given) > 1:
        raise _C.UsageError(f"{owner}: qkv_layer and kv_layer are both given; give one of them")
    (name,) = given
    parts = _PARTS[name]
    tensor = arguments[name]
    for each in _PARTS:
        arguments.pop(each, None)
    dim = arguments.pop(_INTERLEAVE, -3)
    if type(dim) is not int or dim not in (-3, -2):
        raise refusal(owner, _INTERLEAVE, "-3 or -2", dim)
    if not isinstance(tensor, torch.Tensor):
        raise refusal(owner, name, f"a tensor of {parts} parts", tensor)
    if tensor.dim() < 4 or tensor.size(dim) != parts:
        shape = f"[..., {parts}, heads, size]" if dim == -3 else f"[..., heads, {parts}, size]"
        raise _C.ShapeError(
            f"{owner}: {name} is {list(tensor.shape)}; with {_INTERLEAVE}={dim} it is {shape}"
        )
    by_position = list(args)
    for number, part in enumerate(tensor.unbind(dim), start=len(REPLACEABLE) - parts):
        replaced = REPLACEABLE[number]
        given_too = by_position[number] if number < len(args) else None
        if given_too is not None or arguments.get(replaced) is not None:
            raise _C.UsageError(
                f"{owner}: {name} holds {replaced}, which is given too; leave it out"
            )
        if number < len(args):
            by_position[number] = part
            arguments.pop(replaced, None)
        else:
            arguments[replaced] = part
    return tuple(by_position), arguments


ARGUMENTS = ("score_mod", "score_mod_bprop", "score_mod_tensors", "score_mod_bprop_tensors")


class ScoreTensor(torch.Tensor):
    """A tensor of the graph. The setters of cuDNN's tensors are accepted and have no effect."""

    def _unchanged(self, *args: Any, **kwargs: Any) -> ScoreTensor:
        return self

    set_data_type = set_name = set_dim = set_stride = set_output = set_is_virtual = _unchanged


def _tanh_backward(loss: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    return loss * (1 - input.tanh().square())


def _sigmoid_backward(loss: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    share = input.sigmoid()
    return loss * share * (1 - share)


def _relu_backward(loss: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    return torch.where(input > 0, loss, 0.0)


# cuDNN's operations by their arguments.
_OPERATIONS: dict[tuple[str, ...], dict[str, Callable[..., torch.Tensor]]] = {
    ("a", "b"): {
        "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
        "logical_and": torch.logical_and, "logical_or": torch.logical_or,
    },
    ("input0", "input1"): {"max": torch.maximum, "min": torch.minimum, "pow": torch.pow},
    ("input", "comparison"): {
        "cmp_eq": torch.eq, "cmp_neq": torch.ne, "cmp_gt": torch.gt, "cmp_ge": torch.ge,
        "cmp_lt": torch.lt, "cmp_le": torch.le,
    },
    ("input",): {
        "abs": torch.abs, "ceil": torch.ceil, "cos": torch.cos, "erf": torch.erf,
        "exp": torch.exp, "floor": torch.floor, "identity": torch.clone, "log": torch.log,
        "logical_not": torch.logical_not, "neg": torch.neg, "reciprocal": torch.reciprocal,
        "relu": torch.relu, "rsqrt": torch.rsqrt, "sigmoid": torch.sigmoid, "sin": torch.sin,
        "sqrt": torch.sqrt, "tan": torch.tan, "tanh": torch.tanh,
    },
    ("input", "scale"): {"scale": torch.mul},
    ("input", "bias"): {"bias": torch.add},
    ("loss", "input"): {
        "tanh_backward": _tanh_backward, "sigmoid_backward": _sigmoid_backward,
        "relu_backward": _relu_backward,
    },
}  # fmt: skip


def _operation(
    name: str, names: tuple[str, ...], compute: Callable[..., torch.Tensor]
) -> Callable[..., torch.Tensor]:
    def call(self: ScoreGraph, *args: Any, **kwargs: Any) -> torch.Tensor:
        given = dict(zip((*names, "compute_data_type", "name"), args, strict=False)) | kwargs
        given.pop("compute_data_type", None)
        given.pop("name", None)
        if given.keys() != set(names):
            raise _C.UsageError(
                f"score_mod: graph.{name} takes {', '.join(names)}, compute_data_type and name; "
                f"got {', '.join(given) or 'nothing'}"
            )
        return compute(*(given[each] for each in names))

    call.__name__ = name
    return call


class ScoreGraph:
    """The pointwise operations of cuDNN's graph, on blocks of scores."""

    def __init__(self, place: list[int]) -> None:
        self._firsts = place[:4]

    def gen_index(self, input: torch.Tensor, axis: int, compute_data_type: Any = None,
                  name: str = "") -> torch.Tensor:  # fmt: skip
        """Returns the index of every element along ``axis``, int32 in the shape of the score."""
        first, count = self._firsts[axis], input.shape[axis]
        index = torch.arange(first, first + count, dtype=torch.int32, device=input.device)
        shape = [count if dim == axis % 4 else 1 for dim in range(4)]
        return index.view(shape).expand(input.shape).as_subclass(ScoreTensor)

    def binary_select(self, input0: torch.Tensor, input1: torch.Tensor, mask: torch.Tensor,
                      compute_data_type: Any = None, name: str = "") -> torch.Tensor:  # fmt: skip
        """``input0`` where ``mask`` is true, ``input1`` elsewhere."""
        return torch.where(mask.bool(), input0, input1)

    def __getattr__(self, name: str) -> Any:
        raise _C.UsageError(
            f"score_mod: the graph does not have an operation {name}; it has gen_index, "
            f"binary_select, {', '.join(sorted(n for row in _OPERATIONS.values() for n in row))}, "
            "and operators of torch are supported too"
        )


for _names, _row in _OPERATIONS.items():
    for _name, _compute in _row.items():
        setattr(ScoreGraph, _name, _operation(_name, _names, _compute))


class _BlockCallback:
    """A user's function as called by the C++ attention: (a block of scores, its place)."""

    def __init__(self, owner: str, name: str, function: Any, tensors: Any) -> None:
        if not callable(function):
            raise refusal(owner, name, "a function of (graph, score, tensors), or None", function)
        tensors = {} if tensors is None else tensors
        if not isinstance(tensors, dict) or not all(
            isinstance(key, str) and isinstance(value, torch.Tensor)
            for key, value in tensors.items()
        ):
            raise refusal(owner, f"{name}_tensors", "a dict of names and tensors, or None", tensors)
        self._name, self._function = name, function
        self._tensors = {
            key: (value.detach(), 0 if value.is_inference() else value._version)
            for key, value in tensors.items()
        }

    def __call__(self, score: torch.Tensor, place: list[int]) -> torch.Tensor:
        tensors = {name: self._part(name, score, place) for name in self._tensors}
        made = self._function(ScoreGraph(place), score.as_subclass(ScoreTensor), tensors)
        if not isinstance(made, torch.Tensor):
            raise _C.UsageError(
                f"{self._name} returned a {type(made).__name__}; expected the scores, a tensor"
            )
        return made.as_subclass(torch.Tensor)

    def _part(self, name: str, score: torch.Tensor, place: list[int]) -> torch.Tensor:
        tensor, version = self._tensors[name]
        if not tensor.is_inference() and tensor._version != version:
            raise _C.UsageError(
                f"{self._name}_tensors['{name}'] was changed in place between the forward and "
                "its backward, which recomputes the scores; pass a copy to the forward"
            )
        missing = 4 - tensor.dim()
        for dim, size in enumerate(tensor.shape):
            axis = dim + missing
            if size == 1 or missing < 0:
                continue
            if size != place[4 + axis]:
                missing = -1
                break
            tensor = tensor.narrow(dim, place[axis], score.shape[axis])
        if missing < 0:
            raise _C.ShapeError(
                f"{self._name}_tensors['{name}'] is {list(self._tensors[name][0].shape)}; expected "
                f"one that broadcasts to [batch, heads, seq_q, seq_kv] = {place[4:]}"
            )
        return tensor.to(score.device).as_subclass(ScoreTensor)


def with_score_mod(owner: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call with score_mod and score_mod_bprop for the C++ attention.

    Gradients reach queries, keys and values; ``score_mod_tensors`` get none, as in Transformer
    Engine.
    """
    given = {name: arguments[name] for name in ARGUMENTS if arguments.get(name) is not None}
    arguments = {name: value for name, value in arguments.items() if name not in ARGUMENTS}
    for name, needed in [
        ("score_mod_bprop", "score_mod"),
        ("score_mod_tensors", "score_mod"),
        ("score_mod_bprop_tensors", "score_mod_bprop"),
    ]:
        if name in given and needed not in given:
            raise _C.UsageError(f"{owner}: {name} needs {needed}, which is not given")
    if given and arguments.get("inference_params") is not None:
        raise _C.UsageError(f"{owner}: inference_params do not go with score_mod")
    for name in ("score_mod", "score_mod_bprop"):
        if name in given:
            tensors = given.get(f"{name}_tensors")
            arguments[name] = _BlockCallback(owner, name, given[name], tensors)
    return arguments
