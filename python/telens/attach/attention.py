"""Shows the calls of torch's scaled_dot_product_attention inside a watched model."""

from __future__ import annotations

import functools
import math
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

from telens.attach.edges import computed_first, input_edges, newest_node, on_gradient
from telens.attach.layers import Layer, local_part

__all__ = [
    "AttentionFunction",
    "calling_module",
    "is_causal_bias",
    "keep_scriptable",
    "replace_function",
    "show_attention",
    "watch_attention_backward",
]

_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def calling_module(covered: Callable[[torch.nn.Module], bool]) -> torch.nn.Module | None:
    """Returns the innermost covered module whose method is running on this thread."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_argcount and code.co_varnames[0] == "self":
            owner = frame.f_locals.get("self")
            if isinstance(owner, torch.nn.Module) and covered(owner):
                return owner
        frame = frame.f_back
    return None


def is_causal_bias(mask: Any) -> bool:
    """Returns True for the causal masks of ``torch.nn.attention.bias``."""
    # Importing the module imports torch._dynamo, which takes seconds.
    module = sys.modules.get("torch.nn.attention.bias")
    return module is not None and isinstance(mask, module.CausalBias)


def replace_function(function: Any, replacement: Any) -> None:
    """Replaces a function in ``torch.nn.functional`` and in modules that have imported it."""
    for file, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", None)
        if file.startswith("torch._C") or not isinstance(names, dict):
            continue
        for name, value in list(names.items()):
            if value is function:
                names[name] = replacement


def keep_scriptable(replacement: Callable, original: Any) -> None:
    """Lets ``torch.jit.script`` compile code that calls the replacement: it uses the original."""
    builtin = torch.jit._builtins._find_builtin(original)
    if builtin:
        torch.jit._builtins._register_builtin(replacement, builtin)
    else:
        replacement.__prepare_scriptable__ = lambda: original


class AttentionFunction:
    """Replaces ``torch.nn.functional.scaled_dot_product_attention`` until ``remove()``.

    Warns and does nothing if another library has replaced it before.

    Parameters
    ----------
    before
        ``before(arguments)``: called with query, key, value and the other arguments by name;
        returns the ``state`` for ``after``, or None if the call is not watched
    after
        ``after(state, output)``
    """

    def __init__(
        self,
        before: Callable[[dict[str, Any]], Any],
        after: Callable[[Any, torch.Tensor], None],
    ) -> None:
        original = torch.nn.functional.scaled_dot_product_attention
        self._original = original
        self._watched = None
        self._removed = False
        if original is not torch._C._nn.scaled_dot_product_attention:
            # The other library needs the calls, and may restore its own function later.
            warnings.warn(
                "telens.watch: attention is not recorded, because "
                f"{getattr(original, '__module__', None)} has replaced torch's "
                "scaled_dot_product_attention",
                stacklevel=4,
            )
            return
        inside_bias = threading.local()

        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self._removed:
                return original(*args, **kwargs)
            if getattr(inside_bias, "runs", False):
                return original(*args, **kwargs)
            arguments = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
            # A call with missing arguments ends with torch's own error.
            state = before(arguments) if {*_ARGUMENTS[:3]} <= {*arguments} else None
            bias = arguments.get("attn_mask")
            if is_causal_bias(bias):
                # Calls the function of torch.nn.functional again, without the bias.
                inside_bias.runs = True
                try:
                    output = type(bias)._dispatch(*args, **kwargs)
                finally:
                    inside_bias.runs = False
            else:
                output = original(*args, **kwargs)
            if state is not None:
                after(state, output)
            return output

        self._watched = watched
        keep_scriptable(watched, original)
        replace_function(original, watched)

    def remove(self) -> None:
        self._removed = True  # another library may have kept the replacement
        if self._watched is not None:
            replace_function(self._watched, self._original)
            torch.jit._builtins._get_builtin_table().pop(id(self._watched), None)


def show_attention(layer: Layer, arguments: dict[str, Any]) -> None:
    """Shows query, key, value and scores."""
    query, key = arguments["query"], arguments["key"]
    for name in ("query", "key", "value"):
        layer.show(name, arguments[name])
    if not layer.asks_for("scores") or query.dim() > 4:
        return
    mask = arguments.get("attn_mask")
    if is_causal_bias(mask):
        mask = mask._materialize(query.device)
    scale = arguments.get("scale")
    layer.calls.inspect_scores(
        query=local_part(query),
        key=local_part(key),
        attn_mask=None if mask is None else local_part(mask),
        is_causal=bool(arguments.get("is_causal", False)),
        scale=1 / math.sqrt(query.size(-1)) if scale is None else float(scale),
    )


def watch_attention_backward(
    layer: Layer, arguments: dict[str, Any], output: torch.Tensor, guard: Callable
) -> None:
    """Shows the gradients of the output, query, key and value when the backward computes them."""
    if not output.requires_grad:
        return
    if layer.asks_for("attention_output_gradient"):
        inputs = [arguments[name] for name in ("query", "key", "value")]
        hooked = computed_first(output, newest_node(inputs))
        hooked.register_hook(layer.shower("attention_output_gradient", guard))
    names = ("query", "key", "value")
    if not any(layer.asks_for(f"{name}_gradient") for name in names):
        return
    edges = input_edges(output, [arguments[name] for name in names])
    for name, of_input in zip(names, edges, strict=True):
        if of_input and layer.asks_for(f"{name}_gradient"):
            on_gradient(of_input, layer.shower(f"{name}_gradient", guard))
