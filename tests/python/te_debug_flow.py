"""Transformer Engine's debug flow without its compiled part: hooks, quantizers and tensor classes.

Written from their public behavior. Codes and scales have the layouts of its tensor classes;
scales differ from what any recipe chooses, so statistics show whether they were read.
"""

import enum
from types import SimpleNamespace

import nvdlfw_inspect.api as debug_api
import torch


class DType(enum.IntEnum):
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8
    kFloat4E2M1 = 9


# The content of transformer_engine/debug/features/api.py of 2.7 and later.
HOOKS = """
from nvdlfw_inspect.base import BaseNamespaceAPI
from nvdlfw_inspect.registry import Registry


class Defaults:
    def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
        return False, None

    def inspect_tensor_postquantize_enabled(self, config, layer_name, gemm, tensor_name, iteration):
        return False, None

    def inspect_tensor(
        self, config, layer_name, tensor_name, tensor, rowwise_quantized_tensor,
        columnwise_quantized_tensor, quantizer, iteration, tp_group
    ):
        pass

    def inspect_tensor_postquantize(
        self, config, layer_name, tensor_name, tensor, iteration, tp_group, rowwise
    ):
        pass


@Registry.register_namespace_api(namespace="transformer_engine")
class Hooks(BaseNamespaceAPI):
    def __init__(self):
        super().__init__()
        self._default_api_impl = Defaults()
        self._cacheable_api_kwargs_map = {
            "inspect_tensor": ["tensor_name"],
            "inspect_tensor_postquantize": ["tensor_name"],
            "inspect_tensor_enabled": ["tensor_name", "iteration"],
            "inspect_tensor_postquantize_enabled": ["tensor_name", "iteration"],
        }

    def is_multiple_feature_invocation_allowed(self, api_name):
        return True

    def input_assertions_hook(self, api_name, **kwargs):
        assert "tensor_name" in kwargs

    def routing_condition(self, api_name, config, layer_name, feature_obj, **kwargs):
        return feature_obj.parse_config_and_api(
            config, gemm_parsing=False, tensor_parsing=True, **kwargs
        )

    def output_assertions_hook(self, api_name, ret, **kwargs):
        assert isinstance(ret, (bool, tuple)) if "enabled" in api_name else ret is None

    def call_feature(self, call, feat_config, layer_name, **kwargs):
        optional = (
            "quantizer", "columnwise_quantized_tensor", "rowwise_quantized_tensor", "tp_size"
        )
        known = call.__code__.co_varnames
        kept = {key: each for key, each in kwargs.items() if key not in optional or key in known}
        return call(feat_config, layer_name, **kept)

    def handle_multi_feature_output(self, api_name, outputs, features_to_invoke, **kwargs):
        if "enabled" not in api_name:
            return super().handle_multi_feature_output(
                api_name, outputs, features_to_invoke, **kwargs
            )
        assert all(isinstance(each, tuple) for each in outputs)
        nexts = [each[1] for each in outputs if each[1] is not None]
        return any(each[0] for each in outputs), min(nexts, default=None)
"""


def old_hooks() -> str:
    """The hooks of 2.4 to 2.6, which return booleans; inspect_tensor gets no quantized copies."""
    text = HOOKS[: HOOKS.index("    def call_feature")].replace(
        "return False, None", "return False"
    )
    start = text.index("        self, config, layer_name, tensor_name, tensor, rowwise")
    end = text.index("\n    ):", start)
    signature = "        self, config, layer_name, tensor_name, tensor, iteration, tp_group"
    return text[:start] + signature + text[end:]


def install(folder, hooks: str) -> None:
    """Writes a package transformer_engine with these hooks."""
    package = folder / "transformer_engine"
    features = package / "debug" / "features"
    features.mkdir(parents=True)
    (package / "__init__.py").touch()
    (features / "api.py").write_text(hooks)


# ---- quantizers and tensors


class QuantizedTensor(torch.Tensor):
    """A tensor without values of its own, as in Transformer Engine. No operation supports it."""

    @staticmethod
    def __new__(cls, x, **attributes):
        made = torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype, device=x.device)
        for name, value in attributes.items():
            setattr(made, name, value)
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was called on a quantized tensor")


class Float8Tensor(QuantizedTensor):
    pass


class MXFP8Tensor(QuantizedTensor):
    pass


class Float8BlockwiseQTensor(QuantizedTensor):
    pass


class NVFP4Tensor(QuantizedTensor):
    pass


def _padded(scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Pads scales to multiples of `rows` and `columns` with a nonzero byte."""
    height = -(-scales.shape[0] // rows) * rows
    width = -(-scales.shape[1] // columns) * columns
    made = torch.full((height, width), 77, dtype=scales.dtype)
    made[: scales.shape[0], : scales.shape[1]] = scales
    return made


def _amax(matrix: torch.Tensor, height: int, length: int) -> torch.Tensor:
    rows, columns = matrix.shape
    padded = torch.zeros(-(-rows // height) * height, -(-columns // length) * length)
    padded[:rows, :columns] = matrix.abs()
    return padded.view(-(-rows // height), height, -1, length).amax((1, 3))


def _spread(scales: torch.Tensor, matrix: torch.Tensor, height: int, length: int) -> torch.Tensor:
    of_elements = scales.repeat_interleave(height, 0).repeat_interleave(length, 1)
    return of_elements[: matrix.shape[0], : matrix.shape[1]]


def _e4m3(matrix: torch.Tensor, scale_inv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and their values."""
    codes = (matrix / scale_inv).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes.view(torch.uint8), codes.float() * scale_inv


class Float8Quantizer:
    """Delayed scaling; each tensor has its own scale."""

    dtype = DType.kFloat8E4M3

    def __init__(self):
        self.scale = torch.tensor([3.0])
        self.amax = torch.zeros(1)

    def __call__(self, x):
        flat = x.reshape(-1, x.shape[-1]).float()
        scale_inv = 1 / self.scale
        codes = (flat * self.scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        self.rowwise = self.columnwise = codes.float() * scale_inv
        self.scales = scale_inv.reshape(1, 1)
        data = codes.view(torch.uint8)
        return Float8Tensor(
            x,
            _data=data.view(x.shape),
            _transpose=data.t().contiguous().view(x.shape[-1], *x.shape[:-1]),
            _transpose_invalid=False,
            _scale_inv=scale_inv,
            _fp8_dtype=self.dtype,
            _quantizer=self,
        )


class MXFP8Quantizer:
    dtype = DType.kFloat8E4M3

    def _quantized(self, matrix):
        exponent = torch.ceil(torch.log2(_amax(matrix, 1, 32) / 448)) + 1
        scales = torch.exp2(exponent)
        codes, values = _e4m3(matrix, _spread(scales, matrix, 1, 32))
        return codes, (exponent + 127).to(torch.uint8), scales, values

    def __call__(self, x):
        flat = x.reshape(-1, x.shape[-1]).float()
        codes, stored, self.scales, self.rowwise = self._quantized(flat)
        transposed, stored_columns, _, values = self._quantized(flat.t())
        self.columnwise = values.t()
        return MXFP8Tensor(
            x,
            _rowwise_data=codes.view(x.shape),
            _rowwise_scale_inv=_padded(stored, 128, 4),
            _columnwise_data=transposed.t().contiguous().view(x.shape),
            _columnwise_scale_inv=_padded(stored_columns.t(), 4, 128),
            _fp8_dtype=self.dtype,
            _with_gemm_swizzled_scales=False,
            _quantizer=self,
        )


class Float8BlockQuantizer:
    dtype = DType.kFloat8E4M3

    def __init__(self, block_scaling_dim):
        self.block_scaling_dim = block_scaling_dim

    def _quantized(self, matrix):
        height = 128 if self.block_scaling_dim == 2 else 1
        scales = _amax(matrix, height, 128) / 300
        codes, values = _e4m3(matrix, _spread(scales, matrix, height, 128))
        stored = scales if self.block_scaling_dim == 2 else scales.t()
        return codes, _padded(stored, 1, 4), scales, values

    def __call__(self, x):
        flat = x.reshape(-1, x.shape[-1]).float()
        codes, stored, self.scales, self.rowwise = self._quantized(flat)
        transposed, stored_columns, _, values = self._quantized(flat.t())
        self.columnwise = values.t()
        return Float8BlockwiseQTensor(
            x,
            _rowwise_data=codes.view(x.shape),
            _rowwise_scale_inv=stored,
            _columnwise_data=transposed.contiguous().view(x.shape[-1], *x.shape[:-1]),
            _columnwise_scale_inv=stored_columns,
            _fp8_dtype=self.dtype,
            _is_2D_scaled=self.block_scaling_dim == 2,
            _quantizer=self,
        )


class NVFP4Quantizer:
    dtype = DType.kFloat4E2M1
    with_rht = False
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])

    def _quantized(self, matrix):
        amax = matrix.abs().amax() * 1.25
        of_tensor = amax / (6 * 448)
        stored = (_amax(matrix, 1, 16) / 6 / of_tensor).to(torch.float8_e4m3fn)
        scale_inv = _spread(stored.float() * of_tensor, matrix, 1, 16).clamp(min=1e-30)
        nearest = ((matrix / scale_inv).abs().unsqueeze(-1) - self.values).abs().argmin(-1)
        values = self.values[nearest] * matrix.sign() * scale_inv
        codes = (nearest + 8 * (matrix < 0)).to(torch.uint8)
        packed = codes[:, ::2] | (codes[:, 1::2] << 4)
        scales = _padded(stored.view(torch.uint8), 128, 4)
        return packed, scales, amax.reshape(1), values

    def __call__(self, x):
        flat = x.reshape(-1, x.shape[-1]).float()
        codes, stored, amax, self.rowwise = self._quantized(flat)
        columns, stored_columns, amax_columns, values = self._quantized(flat.t())
        self.columnwise = values.t()
        return NVFP4Tensor(
            x,
            _rowwise_data=codes.view(*x.shape[:-1], -1),
            _rowwise_scale_inv=stored,
            _amax_rowwise=amax,
            _columnwise_data=columns.view(x.shape[-1], *x.shape[:-2], -1),
            _columnwise_scale_inv=stored_columns,
            _amax_columnwise=amax_columns,
            _fp4_dtype=self.dtype,
            _with_gemm_swizzled_scales=False,
            _quantizer=self,
        )


# ---- the flow

_GEMMS = {
    "activation": ("fprop", "wgrad"),
    "weight": ("fprop", "dgrad"),
    "gradient": ("dgrad", "wgrad"),
}


class DebugQuantizer:
    """Calls the hooks for one tensor of a layer, as Transformer Engine's class of this name does.

    ``operands``: whether inspect_tensor receives the quantized copies (2.7 and later).
    """

    def __init__(self, layer, tensor_name, quantizer=None, operands=True):
        self.layer, self.tensor_name, self.quantizer = layer, tensor_name, quantizer
        self.operands = operands
        hooks = debug_api.transformer_engine
        named = {"layer_name": layer, "tensor_name": tensor_name, "iteration": self.iteration}
        self.inspects = self._enabled(hooks.inspect_tensor_enabled(**named))
        self.inspects_copies = [
            self._enabled(hooks.inspect_tensor_postquantize_enabled(gemm=gemm, **named))
            for gemm in _GEMMS.get(tensor_name, ())
        ]

    @property
    def iteration(self):
        return debug_api.DEBUG_MANAGER._trainer_iteration_count

    def _enabled(self, answer):
        # Earlier versions only test whether the answer is true.
        return answer[0] if self.operands and isinstance(answer, tuple) else bool(answer)

    def __call__(self, x):
        """Quantizes the tensor and calls the hooks."""
        hooks = debug_api.transformer_engine
        copy = x if self.quantizer is None else self.quantizer(x)
        is_input = self.tensor_name in _GEMMS
        arguments = {
            "layer_name": self.layer,
            "tensor_name": self.tensor_name,
            "tensor": x,
            "iteration": self.iteration,
            "tp_group": None,
        }
        added = {"tp_size": 1} if self.operands else {}
        copies = {
            "rowwise_quantized_tensor": copy if is_input else None,
            "columnwise_quantized_tensor": copy if is_input else None,
            "quantizer": self.quantizer,
        }
        if self.inspects:
            hooks.inspect_tensor(**arguments, **added, **(copies if self.operands else {}))
        if self.quantizer is not None:
            for rowwise, enabled in zip((True, False), self.inspects_copies, strict=True):
                if enabled:
                    arguments["tensor"] = copy
                    hooks.inspect_tensor_postquantize(**arguments, **added, rowwise=rowwise)
        return SimpleNamespace(tensor=copy, quantizer=self.quantizer)
