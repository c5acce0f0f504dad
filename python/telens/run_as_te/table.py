"""The map from modules of Transformer Engine and nvdlfw_inspect to telens modules, and the missing
ones."""

from __future__ import annotations

__all__ = ["ADVICE", "CLASSES", "MODULES", "PACKAGES"]

# Packages by distribution name, with the version whose names are provided.
PACKAGES = {
    "transformer_engine": "2.20.0",
    "transformer_engine_torch": "2.20.0",
    "nvdlfw_inspect": "0.2.2",
}

_LAYERS = "telens.pytorch.modules"
_TENSOR = "telens.pytorch.tensor"
_USERBUFFERS = "telens.pytorch.userbuffers"
_COMPAT = "telens.pytorch.compat"
_API = "telens.debug"
# Modules with a single feature class.
_FEATURES = (
    "disable_fp8_gemm",
    "disable_fp8_layer",
    "disable_quantization_gemm",
    "disable_quantization_layer",
    "dump_tensors",
    "fake_quant",
    "log_fp8_tensor_stats",
    "log_nvfp4_tensor_stats",
    "log_tensor_stats",
    "per_tensor_scaling",
)

# Their module -> telens modules that provide its names; the first one that has a name provides it.
# A missing telens module is skipped.
MODULES: dict[str, tuple[str, ...]] = {
    "transformer_engine": (),
    "transformer_engine.common": ("telens.common",),
    "transformer_engine.common.recipe": ("telens.common.recipe",),
    "transformer_engine.debug": ("telens.debug",),
    "transformer_engine.debug.features": ("telens.debug.features",),
    "transformer_engine.debug.features.api": ("telens.debug.features.api",),
    **{
        f"transformer_engine.debug.features.{each}": (f"{_API}.features.inheritable",)
        for each in _FEATURES
    },
    "transformer_engine.debug.features.utils": ("telens.debug.features.utils",),
    "transformer_engine.debug.pytorch": ("telens.debug.pytorch",),
    "transformer_engine.debug.pytorch.debug_state": ("telens.debug.pytorch.debug_state",),
    "transformer_engine.pytorch": ("telens.pytorch",),
    "transformer_engine.pytorch.attention": ("telens.pytorch.attention",),
    "transformer_engine.pytorch.attention.dot_product_attention": (
        "telens.pytorch.attention.dot_product_attention",
    ),
    "transformer_engine.pytorch.attention.dot_product_attention.context_parallel": (
        "telens.pytorch.attention.dot_product_attention.context_parallel",
    ),
    "transformer_engine.pytorch.attention.inference": ("telens.pytorch.attention.inference",),
    "transformer_engine.pytorch.attention.multi_head_attention": (
        "telens.pytorch.attention.multi_head_attention",
    ),
    "transformer_engine.pytorch.attention.rope": ("telens.pytorch.attention.rope",),
    "transformer_engine.pytorch.constants": ("telens.pytorch.constants", "telens.pytorch"),
    "transformer_engine.pytorch.cpp_extensions": (f"{_COMPAT}.gemm",),
    "transformer_engine.pytorch.cpp_extensions.gemm": (f"{_COMPAT}.gemm",),
    "transformer_engine.pytorch.cpu_offload": ("telens.pytorch.cpu_offload",),
    "transformer_engine.pytorch.cross_entropy": ("telens.pytorch.cross_entropy",),
    "transformer_engine.pytorch.custom_recipes": ("telens.pytorch.custom_recipes",),
    "transformer_engine.pytorch.custom_recipes.gemm": ("telens.pytorch.custom_recipes.gemm",),
    "transformer_engine.pytorch.distributed": ("telens.pytorch.distributed", f"{_COMPAT}.ranks"),
    "transformer_engine.pytorch.ep": (f"{_COMPAT}.expert_parallel",),
    "transformer_engine.pytorch.float8_tensor": (f"{_TENSOR}.float8_tensor",),
    "transformer_engine.pytorch.fp8": ("telens.pytorch.fp8",),
    "transformer_engine.pytorch.graph": ("telens.pytorch.graph", f"{_COMPAT}.graph_state"),
    "transformer_engine.pytorch.module": (_LAYERS, _USERBUFFERS),
    "transformer_engine.pytorch.module.base": ("telens.pytorch.module_base", _USERBUFFERS),
    "transformer_engine.pytorch.module.fp8_padding": ("telens.pytorch.permutation",),
    "transformer_engine.pytorch.module.fp8_unpadding": ("telens.pytorch.permutation",),
    "transformer_engine.pytorch.module.grouped_linear": (_LAYERS,),
    "transformer_engine.pytorch.module.layernorm": (_LAYERS,),
    "transformer_engine.pytorch.module.layernorm_linear": (_LAYERS,),
    "transformer_engine.pytorch.module.layernorm_mlp": (_LAYERS,),
    "transformer_engine.pytorch.module.linear": (_LAYERS,),
    "transformer_engine.pytorch.module.rmsnorm": (_LAYERS,),
    "transformer_engine.pytorch.ops": (f"{_COMPAT}.ops",),
    "transformer_engine.pytorch.ops.basic": (f"{_COMPAT}.ops",),
    "transformer_engine.pytorch.ops.basic.grouped_linear": (f"{_COMPAT}.ops",),
    "transformer_engine.pytorch.optimizers": ("telens.pytorch.optimizers",),
    "transformer_engine.pytorch.optimizers.fused_adam": ("telens.pytorch.optimizers.fused_adam",),
    "transformer_engine.pytorch.optimizers.fused_sgd": ("telens.pytorch.optimizers.fused_sgd",),
    "transformer_engine.pytorch.optimizers.multi_tensor_apply": (
        "telens.pytorch.optimizers.multi_tensor",
    ),
    "transformer_engine.pytorch.permutation": ("telens.pytorch.permutation",),
    "transformer_engine.pytorch.quantization": (
        "telens.pytorch.quantization",
        _TENSOR,
        "telens.pytorch.fp8_meta",
    ),
    "transformer_engine.pytorch.quantized_tensor": ("telens.pytorch.quantized_tensor",),
    "transformer_engine.pytorch.rope": ("telens.pytorch.rotary",),
    "transformer_engine.pytorch.router": (f"{_COMPAT}.router",),
    "transformer_engine.pytorch.tensor": (_TENSOR,),
    "transformer_engine.pytorch.tensor.float8_blockwise_tensor": (
        f"{_TENSOR}.float8_blockwise_tensor",
    ),
    "transformer_engine.pytorch.tensor.float8_tensor": (f"{_TENSOR}.float8_tensor",),
    "transformer_engine.pytorch.tensor.grouped_tensor": (f"{_COMPAT}.expert_parallel",),
    "transformer_engine.pytorch.tensor.identity_tensor": (f"{_TENSOR}.identity_tensor",),
    "transformer_engine.pytorch.tensor.mxfp8_tensor": (f"{_TENSOR}.mxfp8_tensor",),
    "transformer_engine.pytorch.tensor.nvfp4_tensor": (f"{_TENSOR}.nvfp4_tensor",),
    "transformer_engine.pytorch.tensor.quantized_tensor": (f"{_TENSOR}.quantized_tensor",),
    "transformer_engine.pytorch.tensor.utils": (f"{_COMPAT}.master_weights",),
    "transformer_engine.pytorch.transformer": ("telens.pytorch.transformer",),
    "transformer_engine.pytorch.utils": ("telens.pytorch.availability", f"{_COMPAT}.utils"),
    "transformer_engine_torch": (
        "telens.pytorch.constants",
        "telens.pytorch.optimizers.multi_tensor",
        f"{_COMPAT}.ranks",
    ),
    "nvdlfw_inspect": (),
    "nvdlfw_inspect.api": (_API,),
    "nvdlfw_inspect.base": (f"{_API}.base",),
    "nvdlfw_inspect.config_manager": (f"{_API}.config_manager",),
    "nvdlfw_inspect.debug_features": (f"{_API}.debug_features",),
    "nvdlfw_inspect.debug_features.generic_feature_api": (
        f"{_API}.debug_features.generic_feature_api",
    ),
    "nvdlfw_inspect.debug_features.log_tensor_stats": (f"{_API}.debug_features.log_tensor_stats",),
    "nvdlfw_inspect.debug_manager": (f"{_API}.debug_manager",),
    "nvdlfw_inspect.logging": (f"{_API}.logging",),
    "nvdlfw_inspect.registry": (f"{_API}.registry",),
    "nvdlfw_inspect.utils": (f"{_API}.utils",),
}

# Layer classes -> their modules.
_PYTORCH = "transformer_engine.pytorch"
CLASSES = {
    "DotProductAttention": f"{_PYTORCH}.attention.dot_product_attention",
    "GroupedLinear": f"{_PYTORCH}.module.grouped_linear",
    "LayerNorm": f"{_PYTORCH}.module.layernorm",
    "LayerNormLinear": f"{_PYTORCH}.module.layernorm_linear",
    "LayerNormMLP": f"{_PYTORCH}.module.layernorm_mlp",
    "Linear": f"{_PYTORCH}.module.linear",
    "MultiheadAttention": f"{_PYTORCH}.attention.multi_head_attention",
    "RMSNorm": f"{_PYTORCH}.module.rmsnorm",
    "TransformerLayer": f"{_PYTORCH}.transformer",
}

_OPTIMIZERS = "it is in transformer_engine.pytorch.optimizers"

# Advice for names that telens lacks.
ADVICE = {
    "FusedAdam": _OPTIMIZERS,
    "FusedSGD": _OPTIMIZERS,
    "onnx_export": "export to ONNX is not there",
    "export": "export to ONNX is not there",
    "jax": "telens has a front end for PyTorch",
}
