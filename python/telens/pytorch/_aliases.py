"""Former paths of modules: importing one returns the module that has its names now."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

__all__ = ["FORMER_PATHS", "install"]

_ROOT = "telens.pytorch"

# {former path: present path}, both below telens.pytorch. Paths of Transformer Engine without a
# module here are included.
FORMER_PATHS = {
    "attention.multi_head_attention": "modules",
    "captured": "graphs.capture",
    "context_batches": "parallel.context_batches",
    "context_parallel": "parallel.context_parallel",
    "context_places": "parallel.context_batches",
    "conversion_notes": "conversion",
    "cross_entropy": "parallel.cross_entropy",
    "cuda_graphs": "graphs.capture",
    "delayed_wgrads": "layers.delayed_wgrads",
    "divided_activation": "parallel.divided_activation",
    "extra_state": "checkpoints.extra_state",
    "fsdp": "parallel.fsdp",
    "graph": "graphs.callables",
    "graph_capture": "graphs.capture",
    "graph_hooks": "graphs.options",
    "graph_options": "graphs.options",
    "graph_order": "graphs.order",
    "graph_pending": "graphs.pending",
    "graph_runner": "graphs.runner",
    "graph_stream": "graphs.pending",
    "graph_warm_up": "graphs.warm_up",
    "graph_wgrads": "graphs.wgrads",
    "grouped_parameters": "layers.grouped_parameters",
    "hugging_face_parts": "hugging_face.parts",
    "hugging_face_t5": "hugging_face.t5",
    "hugging_face_trainer": "hugging_face.trainer",
    "inference_params": "layers.inference_params",
    "initialization": "layers.initialization",
    "kv_cache": "layers.kv_cache",
    "moe_dispatcher": "moe.dispatcher",
    "neutral_arguments": "layers.arguments",
    "packed_heads": "layers.attention_inputs",
    "permutation": "moe.permutation",
    "pickle_machine": "checkpoints.pickle_machine",
    "positional_arguments": "layers.arguments",
    "quantized_tensor": "tensor",
    "rms_norm_formula": "hugging_face.replaced_modules",
    "rng_tracker": "parallel.rng_tracker",
    "rotary": "layers.rotary",
    "score_graph": "layers.attention_inputs",
    "stored_histories": "checkpoints.stored_histories",
    "tensor.float8_blockwise_tensor": "tensor",
    "tensor.float8_tensor": "tensor",
    "tensor.identity_tensor": "tensor",
    "tensor.mxfp8_tensor": "tensor",
    "tensor.nvfp4_tensor": "tensor",
    "tensor.quantized_tensor": "tensor",
    "transformer": "modules",
    "transformer_engine_export": "checkpoints.transformer_engine_export",
    "transformer_engine_pickle": "checkpoints.transformer_engine_pickle",
    "transformer_engine_state": "checkpoints.transformer_engine_state",
    "transformers_conv1d": "hugging_face.replaced_modules",
    "userbuffers": "parallel.userbuffers",
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a former path, and loads the module at its present path in its place."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        root, _, name = fullname.partition(f"{_ROOT}.")
        if root or name not in FORMER_PATHS:
            return None
        present = importlib.util.find_spec(f"{_ROOT}.{FORMER_PATHS[name]}")
        return importlib.machinery.ModuleSpec(fullname, self, origin=present.origin)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        name = spec.name.removeprefix(f"{_ROOT}.")
        module = importlib.import_module(f"{_ROOT}.{FORMER_PATHS[name]}")
        # The import system writes the alias's spec into the module.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        alias = module.__spec__
        module.__spec__ = alias.loader_state


def install() -> None:
    """Makes the former paths importable."""
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.append(_Finder())
