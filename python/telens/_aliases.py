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

_ROOT = "telens"

# {former path: present path}, both below telens. Paths of Transformer Engine without a module here
# are included.
FORMER_PATHS = {
    "common.recipe_parameters": "common.recipe_base",
    "debug.feature_checks": "debug.feature_caller",
    "debug.features.defaults": "debug.features.api",
    "debug.features.disable_fp8_gemm": "debug.features.inheritable",
    "debug.features.disable_fp8_layer": "debug.features.inheritable",
    "debug.features.disable_quantization_gemm": "debug.features.inheritable",
    "debug.features.disable_quantization_layer": "debug.features.inheritable",
    "debug.features.dump_tensors": "debug.features.inheritable",
    "debug.features.fake_quant": "debug.features.inheritable",
    "debug.features.log_fp8_tensor_stats": "debug.features.inheritable",
    "debug.features.log_nvfp4_tensor_stats": "debug.features.inheritable",
    "debug.features.log_tensor_stats": "debug.features.inheritable",
    "debug.features.namespace": "debug.features.api",
    "debug.features.per_tensor_scaling": "debug.features.inheritable",
    "debug.features.scheduled": "debug.features.inheritable",
    "debug.features.wanted_statistics": "debug.features.inheritable",
    "debug.layer_trees": "debug.layer_names",
    "debug.offered_statistics": "debug.feature_caller",
    "debug.printing": "debug.logging",
    "debug.session_options": "debug.configuration",
    "debug.statistic_caller": "debug.feature_caller",
    "paddle.default_dtype": "paddle.layer",
    "paddle.layer_options": "paddle.arguments",
    "paddle.layer_trees": "paddle.layer",
    "paddle.normalized_layer": "paddle.layer_norm",
    "paddle.process_group": "paddle.collectives",
    "paddle.random_state": "paddle.dot_product_attention",
    "pytorch._compile": "pytorch.module",
    "pytorch.attention.multi_head_attention": "pytorch.modules",
    "pytorch.captured": "pytorch.graphs.capture",
    "pytorch.compat.heads_of_rank": "pytorch.layers.arguments",
    "pytorch.context_batches": "pytorch.parallel.context_parallel",
    "pytorch.context_parallel": "pytorch.parallel.context_parallel",
    "pytorch.context_places": "pytorch.parallel.context_parallel",
    "pytorch.conversion_notes": "pytorch.conversion",
    "pytorch.cross_entropy": "pytorch.parallel.cross_entropy",
    "pytorch.cuda_graphs": "pytorch.graphs.capture",
    "pytorch.delayed_wgrads": "pytorch.layers.delayed_wgrads",
    "pytorch.divided_activation": "pytorch.parallel.divided_activation",
    "pytorch.extra_state": "pytorch.checkpoints.extra_state",
    "pytorch.fsdp": "pytorch.parallel.fsdp",
    "pytorch.graph": "pytorch.graphs.callables",
    "pytorch.graph_capture": "pytorch.graphs.capture",
    "pytorch.graph_hooks": "pytorch.graphs.options",
    "pytorch.graph_options": "pytorch.graphs.options",
    "pytorch.graph_order": "pytorch.graphs.order",
    "pytorch.graph_pending": "pytorch.graphs.wgrads",
    "pytorch.graph_runner": "pytorch.graphs.runner",
    "pytorch.graph_stream": "pytorch.graphs.wgrads",
    "pytorch.graph_warm_up": "pytorch.graphs.callables",
    "pytorch.graph_wgrads": "pytorch.graphs.wgrads",
    "pytorch.graphs.pending": "pytorch.graphs.wgrads",
    "pytorch.graphs.warm_up": "pytorch.graphs.callables",
    "pytorch.grouped_parameters": "pytorch.layers.grouped_parameters",
    "pytorch.hugging_face.t5": "pytorch.hugging_face.layers",
    "pytorch.hugging_face_parts": "pytorch.hugging_face.parts",
    "pytorch.hugging_face_t5": "pytorch.hugging_face.layers",
    "pytorch.hugging_face_trainer": "pytorch.hugging_face.trainer",
    "pytorch.inference_params": "pytorch.layers.inference_params",
    "pytorch.initialization": "pytorch.layers.initialization",
    "pytorch.kv_cache": "pytorch.layers.kv_cache",
    "pytorch.moe_dispatcher": "pytorch.moe.dispatcher",
    "pytorch.neutral_arguments": "pytorch.layers.arguments",
    "pytorch.optimizers.gradients": "pytorch.optimizers.multi_tensor",
    "pytorch.packed_heads": "pytorch.layers.attention_inputs",
    "pytorch.parallel.context_batches": "pytorch.parallel.context_parallel",
    "pytorch.permutation": "pytorch.moe.permutation",
    "pytorch.pickle_machine": "pytorch.checkpoints.pickle_machine",
    "pytorch.positional_arguments": "pytorch.layers.arguments",
    "pytorch.quantized_tensor": "pytorch.tensor",
    "pytorch.quantizer_requests": "pytorch.quantization",
    "pytorch.recipes_in_use": "pytorch.quantization",
    "pytorch.rms_norm_formula": "pytorch.hugging_face.replaced_modules",
    "pytorch.rng_tracker": "pytorch.parallel.rng_tracker",
    "pytorch.rotary": "pytorch.layers.rotary",
    "pytorch.score_graph": "pytorch.layers.attention_inputs",
    "pytorch.stored_histories": "pytorch.checkpoints.stored_histories",
    "pytorch.tensor.checkpoint_pieces": "pytorch.tensor.sharded_codes",
    "pytorch.tensor.float8_blockwise_tensor": "pytorch.tensor",
    "pytorch.tensor.float8_tensor": "pytorch.tensor",
    "pytorch.tensor.identity_tensor": "pytorch.tensor",
    "pytorch.tensor.initial_values": "pytorch.tensor",
    "pytorch.tensor.moved_codes": "pytorch.tensor.data",
    "pytorch.tensor.mxfp8_tensor": "pytorch.tensor",
    "pytorch.tensor.nvfp4_tensor": "pytorch.tensor",
    "pytorch.tensor.quantized_tensor": "pytorch.tensor",
    "pytorch.tensor.sharded_rows": "pytorch.tensor.sharded_codes",
    "pytorch.transformer": "pytorch.modules",
    "pytorch.transformer_engine_export": "pytorch.checkpoints.transformer_engine_export",
    "pytorch.transformer_engine_pickle": "pytorch.checkpoints.transformer_engine_pickle",
    "pytorch.transformer_engine_state": "pytorch.checkpoints.transformer_engine_state",
    "pytorch.transformers_conv1d": "pytorch.hugging_face.replaced_modules",
    "pytorch.userbuffers": "pytorch.parallel.userbuffers",
    "replay.dump_structure": "replay.checked_hdf5",
    "replay.own_rows": "replay.dumps",
    "te_features.precision": "te_features.session",
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
