"""Arguments of Transformer Engine that modules accept beyond those of their C++ class.

Most are accepted only at values that change nothing, so that a script which spells out a default
runs. Any other value raises UsageError with the argument, the accepted values and the reason.

Some have an effect in Python: get_rng_state_tracker and rng_tracker_name (parallel/rng_tracker.py),
the cp_* arguments (parallel/context_parallel.py), qkv_layer, kv_layer and score_mod
(attention_inputs.py), tp_size and tp_group of DotProductAttention (heads_of_rank), and
LayerNormMLP's checkpoint (module.py).

The module also limits how many arguments may be positional: only as many as Transformer Engine
accepts in the same order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from telens import _C
from telens.pytorch.parallel.context_parallel import COMM_TYPES, is_context_group

__all__ = [
    "NeutralArgument",
    "check_constructor_positions",
    "constructor_arguments",
    "constructor_positions",
    "forward_arguments",
    "forward_positions",
    "heads_of_rank",
    "is_tensor_parallel_group",
    "note_all_heads",
    "reject_ambiguous_bias",
    "take",
    "without_aliases",
]

# All keywords of a call, with the actual tp_size.
Given = Mapping[str, Any]


@dataclass(frozen=True)
class NeutralArgument:
    """One argument: its default, and the other values that change nothing."""

    name: str
    default: Any
    works: str  # for messages: the accepted values
    lacks: str  # for messages: why other values are rejected
    also: tuple[Any, ...] = ()  # other accepted values
    when: Callable[[Any, Given], bool] | None = None  # accepts a value if it returns True

    def takes(self, value: Any, given: Given) -> bool:
        """Returns whether the value changes nothing in a call with these arguments."""
        neutral = _is_one_of(value, (self.default, *self.also))
        return neutral or (self.when is not None and self.when(value, given))


def _is_one_of(value: Any, values: tuple[Any, ...]) -> bool:
    # Types are compared too: 0 is not False, and tensors are not compared by value.
    return any(value is each or (type(value) is type(each) and value == each) for each in values)


def _any_value(value: Any, given: Given) -> bool:
    return True


def _is_count(value: Any, given: Given) -> bool:
    return type(value) is int and value >= 1


def _is_margin(value: Any, given: Given) -> bool:
    values = value.values() if isinstance(value, Mapping) else [value]
    return all(type(each) is int and each >= 0 for each in values)


def _is_callable(value: Any, given: Given) -> bool:
    return callable(value)


def _is_text(value: Any, given: Given) -> bool:
    return isinstance(value, str)


def _is_context_group(value: Any, given: Given) -> bool:
    return is_context_group(value)


def _is_comm_type(value: Any, given: Given) -> bool:
    return given.get("cp_group") is None or value in COMM_TYPES


def _is_tensor_parallel_group(value: Any, given: Given) -> bool:
    return is_tensor_parallel_group(value)


_A = NeutralArgument
_OVERLAP = "a grouped GEMM overlaps with no communication"
_CONTEXT = "it is not a process group"

_ALL = [
    # ---- tensor and sequence parallelism
    _A(
        "sequence_parallel", False, "any boolean: attention has the whole sequence",
        "it is a switch", (None, True),
    ),
    _A(
        "get_rng_state_tracker", None, "None, or a function that returns a CudaRNGStatesTracker",
        "it is called", (), _is_callable,
    ),
    _A(
        "rng_tracker_name", None, "None, or the name of a state of the tracker", "it is a name", (),
        _is_text,
    ),
    _A("seq_length", None, "any value: it is only a hint", "", (), _any_value),
    _A("micro_batch_size", None, "any value: it is only a hint", "", (), _any_value),
    # ---- overlap
    _A("ub_overlap_ag", False, "False", _OVERLAP),
    _A("ub_overlap_rs", False, "False", _OVERLAP),
    _A("ub_name", None, "any value: nothing overlaps", "", (), _any_value),
    # ---- GEMMs and saved operands
    _A(
        "save_original_input", False, "any boolean: the backward keeps the quantized input",
        "it is a switch", (True,),
    ),
    _A("use_grouped_tensor", None, "any boolean: it changes how products run, not their values",
       "it is a switch", (False, True)),
    _A("checkpoint", False, "any boolean", "it is a switch", (True,)),
    _A(
        "sm_margin", 0, "whole numbers, one or a dict of them: only a hint",
        "they count processors", (), _is_margin,
    ),
    # ---- attention
    _A("layer_number", None, "any value: it is only a name", "", (), _any_value),
    _A("attention_type", "self", "self or cross", "other values do not exist", ("cross",)),
    _A("name", None, "any value: the module does not contain GEMMs to watch", "", (), _any_value),
    _A("tp_size", 1, "an integer from 1 on", "it counts the ranks that divide the heads", (),
       _is_count),
    _A("tp_group", None, "None, or a process group", "it is not a process group", (),
       _is_tensor_parallel_group),
    _A("cp_group", None, "None, a process group, or for a2a+p2p a list of two", _CONTEXT, (),
       _is_context_group),
    _A("cp_global_ranks", None, "any value: the group knows its ranks", "", (), _any_value),
    _A("cp_stream", None, "any value: transfers use separate streams", "", (), _any_value),
    _A("cp_comm_type", "p2p", "one of p2p, all_gather, a2a and a2a+p2p", "other values do not "
                                                                         "exist", (),
       _is_comm_type),
    # ---- of attention's forward
    _A("pad_between_seqs", None, "any boolean: cu_seqlens_q_padded decides", "it is a switch",
       (False, True)),
    _A("fast_zero_fill", True, "any value: it is only a hint", "", (), _any_value),
    _A("inference_params", None, "None, or an InferenceParams", "it is none"),
    _A("bf16_backward", False, "any boolean: gradients have their inputs' dtype anyway",
       "it is a switch", (True,)),
    _A("num_splits", 1, "a number from 1 on: only a hint", "it counts parts", (), _is_count),
    # attention_inputs.py removes these from the call before this table is read.
    _A("score_mod_tensors", None, "a dict of tensors that score_mod gets, or None", ""),
    _A("score_mod_bprop_tensors", None, "likewise for score_mod_bprop", ""),
    _A("qkv_layer", None, "a tensor [..., 3, heads, size] in place of query, key and value", ""),
    _A("kv_layer", None, "a tensor [..., 2, groups, size] in place of key and value", ""),
    _A("qkv_interleave_dim", -3, "-3, or -2 if heads precede the 3 or 2", "", (),
       _any_value),
]  # fmt: skip
_BY_NAME = {each.name: each for each in _ALL}

_TRACKER = "get_rng_state_tracker "
_BLOCK = "seq_length micro_batch_size "
_ATTENTION_FORWARD = "fast_zero_fill inference_params pad_between_seqs "
_CONSTRUCTORS = {
    "Linear": _TRACKER + "rng_tracker_name save_original_input",
    "GroupedLinear": _TRACKER + "rng_tracker_name ub_overlap_ag ub_overlap_rs ub_name "
    "save_original_input use_grouped_tensor",
    "LayerNorm": "sm_margin",
    "RMSNorm": "sm_margin",
    "LayerNormLinear": _TRACKER,
    "LayerNormMLP": _TRACKER + "seq_length micro_batch_size checkpoint",
    "DotProductAttention": _TRACKER
    + "sequence_parallel tp_size tp_group layer_number attention_type cp_group "
    "cp_global_ranks cp_stream cp_comm_type name",
    "MultiheadAttention": _TRACKER + _BLOCK,
    "TransformerLayer": _TRACKER + _BLOCK,
}
_FORWARDS = {
    "DotProductAttention": _ATTENTION_FORWARD + "bf16_backward num_splits "
    "score_mod_tensors score_mod_bprop_tensors qkv_layer kv_layer qkv_interleave_dim",
    "MultiheadAttention": _ATTENTION_FORWARD,
    "TransformerLayer": _ATTENTION_FORWARD,
}
# Other names of existing arguments: hidden_size is Transformer Engine's former name, dtype its
# newer one.
_ALIASES = {
    "LayerNorm": {"hidden_size": "normalized_shape", "dtype": "params_dtype"},
    "RMSNorm": {"hidden_size": "normalized_shape", "dtype": "params_dtype"},
}


def _arguments(names: str) -> dict[str, NeutralArgument]:
    return {name: _BY_NAME[name] for name in names.split()}


def constructor_arguments(module: str) -> dict[str, NeutralArgument]:
    """Returns the neutral arguments of a module's constructor, by name."""
    return _arguments(_CONSTRUCTORS.get(module, ""))


def forward_arguments(module: str) -> dict[str, NeutralArgument]:
    """Returns the neutral arguments of a module's forward, by name."""
    return _arguments(_FORWARDS.get(module, ""))


def without_aliases(
    owner: str, by_position: Mapping[str, Any], given: dict[str, Any]
) -> dict[str, Any]:
    """Returns the keywords with aliases replaced. Raises UsageError if a call gives both names."""
    for alias, name in _ALIASES.get(owner, {}).items():
        if alias not in given:
            continue
        given = given.copy()
        value = given.pop(alias)
        if value is None:
            continue
        if by_position.get(name) is not None or given.get(name) is not None:
            raise _C.UsageError(
                f"{owner}: {alias} is another name of {name}, and both are given; give one of them"
            )
        given[name] = value
    return given


def take(
    owner: str, arguments: dict[str, NeutralArgument], given: dict[str, Any]
) -> dict[str, Any]:
    """Returns the keywords without those in ``arguments``.

    Raises UsageError for a value that is not neutral.
    """
    named = [name for name in given if name in arguments]
    if not named:
        return given
    group = given.get("tp_group")
    size = group.size() if group is not None and hasattr(group, "size") else given.get("tp_size", 1)
    context = given | {"tp_size": size}
    for name in named:
        argument = arguments[name]
        if not argument.takes(given[name], context):
            raise _C.UsageError(
                f"{owner}: {name}={given[name]!r} is not supported: {argument.lacks}; supported "
                f"is {argument.works}"
            )
    return {name: value for name, value in given.items() if name not in arguments}


# For Linear, torch.nn.Linear and Transformer Engine's documentation have the bias third.
_CONSTRUCTOR_POSITIONS = {
    "Linear": 3,
    "GroupedLinear": 3,
    "LayerNormLinear": 3,
    "LayerNormMLP": 3,
    "LayerNorm": 2,
    "RMSNorm": 2,
    "DotProductAttention": 6,
    "MultiheadAttention": 9,
    "TransformerLayer": 12,
}
_FORWARD_POSITIONS = {
    "Linear": 4,
    "GroupedLinear": 5,
    "LayerNormLinear": 4,
    "LayerNormMLP": 2,
    "LayerNorm": 1,
    "RMSNorm": 1,
    "DotProductAttention": 5,
    "MultiheadAttention": 4,
    "TransformerLayer": 3,
}
# Classes whose next argument is a bool with two meanings, by how many come before it.
_BIAS_OR_SEQUENCE_PARALLEL = ("GroupedLinear", "LayerNormLinear", "LayerNormMLP")

# Whether the third argument of Linear is an error: torch has the bias there, Transformer Engine's
# code sequence_parallel.
_rejects_ambiguous_bias = False


def reject_ambiguous_bias() -> None:
    """Makes a bool as the third argument of Linear an error from now on.

    For processes whose scripts are written for Transformer Engine; in others the bool is torch's
    ``bias``.
    """
    global _rejects_ambiguous_bias
    _rejects_ambiguous_bias = True


def constructor_positions(module: str) -> int:
    """How many arguments of a constructor may be given by position; the others are keyword-only."""
    return _CONSTRUCTOR_POSITIONS.get(module, sys.maxsize)


def forward_positions(module: str) -> int:
    """Returns how many arguments of ``forward`` may be positional."""
    return _FORWARD_POSITIONS.get(module, sys.maxsize)


def check_constructor_positions(
    module: str, fields: list[_C.FieldInfo], args: tuple[Any, ...]
) -> None:
    """Raises TypeError for an argument by position that Transformer Engine has in another place."""
    positions = constructor_positions(module)
    if _rejects_ambiguous_bias and module == "Linear" and len(args) == positions:
        positions -= isinstance(args[-1], bool)
    if len(args) <= positions:
        return
    message = (
        f"{module}: takes at most {positions} arguments by position "
        f"({', '.join(field.name for field in fields[:positions])}), got {len(args)}"
    )
    value = args[positions]
    if isinstance(value, bool) and module in (*_BIAS_OR_SEQUENCE_PARALLEL, "Linear"):
        raise TypeError(
            f"{message}; the next one, {value}, is bias in Transformer Engine's documentation and "
            f"sequence_parallel in its code: give bias={value} or sequence_parallel={value} by name"
        )
    if positions < len(fields):
        message += f"; give the others by name: {fields[positions].name}=..."
    raise TypeError(message)


_OWNER = "DotProductAttention"
_HEADS = ("num_attention_heads", "num_gqa_groups")


def is_tensor_parallel_group(value: Any) -> bool:
    """Returns whether a value is a process group."""
    return isinstance(value, torch.distributed.ProcessGroup)


def _ranks(given: dict[str, Any]) -> int:
    """Returns the group's size if there is a group, else ``tp_size``."""
    group = given.get("tp_group")
    return given.get("tp_size", 1) if group is None else group.size()


def heads_of_rank(
    names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any], given: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns a constructor's arguments with the heads and groups of this rank.

    Parameters
    ----------
    names
        of positions
    kwargs
        keywords of the C++ class
    given
        all keywords, of which ``tp_size`` and ``tp_group`` are read

    Raises UsageError for heads or groups that the ranks cannot divide.
    """
    ranks = _ranks(given)
    if ranks == 1:
        return args, kwargs
    args, kwargs = list(args), dict(kwargs)
    for name in _HEADS:
        place = names.index(name)
        where, key = (args, place) if place < len(args) else (kwargs, name)
        total = args[place] if place < len(args) else kwargs.get(name)
        if isinstance(total, int) and not isinstance(total, bool):
            if total % ranks != 0:
                raise _C.UsageError(
                    f"{_OWNER}: {name} is {total} for {ranks} tensor-parallel ranks; expected a "
                    "multiple: it is the total number over all ranks"
                )
            where[key] = total // ranks
    return tuple(args), kwargs


def note_all_heads(module: torch.nn.Module, given: dict[str, Any]) -> None:
    """Sets the attributes for the whole tensor-parallel group, under Transformer Engine's names."""
    ranks = _ranks(given)
    options = module._telens_adapter.options()
    heads = options["num_attention_heads"]
    groups = options["num_gqa_groups"] or heads
    module.__dict__ |= {
        "tp_size": ranks,
        "tp_group": given.get("tp_group"),
        "num_attention_heads": heads * ranks,
        "num_gqa_groups": groups * ranks,
        "num_gqa_groups_per_partition": groups,
    }
