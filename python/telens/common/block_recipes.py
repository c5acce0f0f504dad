"""Recipes with block scaling: MXFP8, FP8 in 128-blocks, NVFP4.

Users and pickles import them from ``telens.common.recipe``.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from telens import _C
from telens._names import names_fields
from telens.common.field_types import check_fields
from telens.common.recipe_base import (
    SPLIT_ACCUMULATOR,
    Format,
    MMParams,
    QParams,
    Recipe,
    check_gemm_parameters,
    check_unsupported,
    fill_quantization,
    fp8_arguments,
    linear_precision,
    quantization_of,
)

__all__: list[str] = []


@names_fields
@dataclass
class MXFP8BlockScaling(Recipe):
    """Each 32 elements along a row share a power-of-two scale (OCP Microscaling Formats 1.0).

    Rows and columns are quantized separately from the high-precision tensor. Features must be
    divisible by 32. The number of tokens is arbitrary.

    Parameters
    ----------
    margin
        ignored, as in Transformer Engine
    fp8_format
        ``Format.E4M3`` or ``Format.HYBRID``
    fp8_dpa
        DotProductAttention casts query, key and value, and its output's gradient, in blocks along
        the summation dimension of each product
    enable_2d_quantization
        weights get one scale for 32x32 elements, the same in both orientations
    override_linear_precision
        whether fprop, dgrad and wgrad run in high precision anyway
    backward_override
        None; ``"high_precision"``: dgrad and wgrad multiply the tensors before their casts;
        ``"dequantized"``: they multiply the dequantized operands of fprop
    """

    _kind = "mxfp8"
    _row_multiple = 32
    _attention_arguments = ("fp8_dpa",)

    margin: int = 0
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    enable_2d_quantization: bool = False
    _: KW_ONLY
    override_linear_precision: tuple[bool, bool, bool] = (False, False, False)

    def __post_init__(self) -> None:
        self._check()

    def _make_native(self) -> _C.Recipe:
        return _C.make_mxfp8_block_scaling(
            fp8_format=_C.Fp8Format.__members__[self.fp8_format.name],
            margin=self.margin,
            enable_2d_quantization=self.enable_2d_quantization,
            override_linear_precision=linear_precision(self),
        )


_FP6_FORMATS = {Format.E3M2: "kFloat6E3M2", Format.E2M3: "kFloat6E2M3"}


@names_fields
@dataclass
class MXFP6BlockScaling(Recipe):
    """Each 32 six-bit elements along a row share a power-of-two scale (OCP MX 1.0). CPU only.

    A code is stored in one byte, so tensors need as much memory as in MXFP8. GEMMs multiply the
    decoded values. Features must be divisible by 32. The number of tokens is arbitrary. The
    recipe does not exist in Transformer Engine. On a GPU, casts raise ``UsageError``.

    Parameters
    ----------
    fp6_format
        ``Format.E3M2`` (largest value 28, 2 mantissa bits) or ``Format.E2M3`` (7.5, 3 mantissa
        bits), for all tensors
    enable_2d_quantization
        weights get one scale for 32x32 elements, the same in both orientations
    override_linear_precision
        whether fprop, dgrad and wgrad run in high precision anyway
    backward_override
        None; ``"high_precision"``: dgrad and wgrad multiply the tensors before their casts;
        ``"dequantized"``: they multiply the dequantized operands of fprop
    """

    _kind = "mxfp6"
    _row_multiple = 32

    fp6_format: Format = Format.E3M2
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    enable_2d_quantization: bool = False
    _: KW_ONLY
    override_linear_precision: tuple[bool, bool, bool] = (False, False, False)

    def __post_init__(self) -> None:
        self._check()

    def _check(self) -> None:
        check_unsupported(self)
        if self.fp6_format not in _FP6_FORMATS:
            raise _C.UsageError(
                "MXFP6BlockScaling: fp6_format must be Format.E3M2 or Format.E2M3, not "
                f"{self.fp6_format!r}"
            )
        check_fields(self)

    def _make_native(self) -> _C.Recipe:
        return _C.make_mxfp6_block_scaling(
            element=_C.DType.__members__[_FP6_FORMATS[self.fp6_format]],
            enable_2d_quantization=self.enable_2d_quantization,
            override_linear_precision=linear_precision(self),
        )


@names_fields
@dataclass
class Float8BlockScaling(Recipe):
    """Each 1x128 elements, and each 128x128 elements of weights, share a scale.

    Parameters
    ----------
    use_f32_scales
        allows scales that are not powers of two; sets the default of ``power_2_scale`` in the three
        ``QParams`` below
    fp8_format
        ``Format.E4M3`` or ``Format.HYBRID``
    x_block_scaling_dim, w_block_scaling_dim, grad_block_scaling_dim
        1 (1x128) or 2 (128x128) for activations, weights and gradients; at most one may be 2
    fp8_gemm_fprop, fp8_gemm_dgrad, fp8_gemm_wgrad
        ``MMParams`` with ``use_split_accumulator=True``
    fp8_quant_fwd_inp, fp8_quant_fwd_weight, fp8_quant_bwd_grad
        ``QParams`` of activations, weights and gradients
    override_linear_precision
        whether fprop, dgrad and wgrad run in high precision anyway
    backward_override
        None; ``"high_precision"``: dgrad and wgrad multiply the tensors before their casts;
        ``"dequantized"``: they multiply the dequantized operands of fprop
    """

    _kind = "float8_block"

    use_f32_scales: bool = False
    fp8_format: Format = Format.E4M3
    x_block_scaling_dim: int = 1
    w_block_scaling_dim: int = 2
    grad_block_scaling_dim: int = 1
    fp8_gemm_fprop: MMParams = SPLIT_ACCUMULATOR
    fp8_gemm_dgrad: MMParams = SPLIT_ACCUMULATOR
    fp8_gemm_wgrad: MMParams = SPLIT_ACCUMULATOR
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    _: KW_ONLY
    fp8_quant_fwd_inp: QParams | None = None
    fp8_quant_fwd_weight: QParams | None = None
    fp8_quant_bwd_grad: QParams | None = None
    override_linear_precision: tuple[bool, bool, bool] = (False, False, False)

    def __post_init__(self) -> None:
        self._check()
        fill_quantization(self, QParams(power_2_scale=not self.use_f32_scales))

    def _check(self) -> None:
        super()._check()
        check_gemm_parameters(self, needs_split_accumulator=True)
        dimensions = self._dimensions()
        if any(dimension not in (1, 2) for dimension in dimensions) or dimensions.count(2) > 1:
            raise _C.UsageError(
                "Float8BlockScaling: x_block_scaling_dim, w_block_scaling_dim and "
                f"grad_block_scaling_dim are {dimensions}; each must be 1 or 2, and at most one 2, "
                "since no GEMM multiplies 128x128 blocks by 128x128 blocks"
            )

    def _dimensions(self) -> tuple[int, int, int]:
        return self.x_block_scaling_dim, self.w_block_scaling_dim, self.grad_block_scaling_dim

    def _make_native(self) -> _C.Recipe:
        return _C.make_float8_block_scaling(dimensions=self._dimensions(), **fp8_arguments(self))


_SCOPES = ("none", "weights", "activations", "all")
# Valid strings of some NVFP4BlockScaling arguments.
_WORDS = {
    "nvfp4_4over6": _SCOPES,
    "nvfp4_4over6_e4m3_use_256": _SCOPES,
    "nvfp4_4over6_err_mode": ("MAE", "MSE"),
}


@names_fields
@dataclass
class NVFP4BlockScaling(Recipe):
    """E2M1: 16 elements share an E4M3 scale; the tensor (or a row) has one FP32 scale.

    The defaults are the training recipe of "Pretraining Large Language Models with NVFP4"
    (arXiv:2509.25149). Features must be divisible by 16. The number of tokens is arbitrary.

    Parameters
    ----------
    disable_rht
        disables the random Hadamard transform of wgrad's activations and gradients
    disable_stochastic_rounding
        rounds gradients to nearest instead of stochastically; then no random numbers are drawn
    disable_2d_quantization
        weights get one scale per 16 elements instead of 16x16
    fp4_format
        ``Format.E2M1``, the format of the elements
    fp8_format
        ``Format.E4M3``, the format of the scales
    row_scaled_activation
        each row of an activation (for wgrad: each column) has a separate FP32 scale instead of one
        per tensor; requires ``disable_rht``
    nvfp4_4over6
        tensors of the forward pass in which each block is scaled to 4 or to 6, whichever has the
        smaller error ("Four Over Six", arXiv:2512.02010): ``"none"``, ``"weights"``,
        ``"activations"`` or ``"all"``; for activations it requires ``disable_rht``
    nvfp4_4over6_e4m3_use_256
        those of these tensors whose largest scale is 256 instead of 448, so that a scale can be
        increased by half
    nvfp4_4over6_err_mode
        the error: ``"MAE"``, the sum of its magnitudes, or ``"MSE"``, of its squares
    override_linear_precision
        whether fprop, dgrad and wgrad run in high precision anyway
    backward_override
        None; ``"high_precision"``: dgrad and wgrad multiply the tensors before their casts;
        ``"dequantized"``: they multiply the dequantized operands of fprop

    Attributes
    ----------
    fp4_quant_fwd_inp, fp4_quant_fwd_weight, fp4_quant_bwd_grad
        ``QParams`` of activations, weights and gradients: set by the switches, and replaced by an
        assignment
    """

    _kind = "nvfp4"

    disable_rht: bool = False
    disable_stochastic_rounding: bool = False
    disable_2d_quantization: bool = False
    row_scaled_activation: bool = False
    nvfp4_4over6: str = "none"
    nvfp4_4over6_e4m3_use_256: str = "all"
    nvfp4_4over6_err_mode: str = "MAE"
    fp4_format: Format = Format.E2M1
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    _: KW_ONLY
    override_linear_precision: tuple[bool, bool, bool] = (False, False, False)
    fp4_quant_fwd_inp: QParams = field(init=False)
    fp4_quant_fwd_weight: QParams = field(init=False)
    fp4_quant_bwd_grad: QParams = field(init=False)

    def __post_init__(self) -> None:
        self._check()
        self._follow_the_switches()

    def _check(self) -> None:
        check_unsupported(self)
        if (self.fp4_format, self.fp8_format) != (Format.E2M1, Format.E4M3):
            raise _C.UsageError(
                "NVFP4BlockScaling: fp4_format must be Format.E2M1 and fp8_format Format.E4M3, not "
                f"{self.fp4_format} and {self.fp8_format}"
            )
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise _C.UsageError(
                    f"NVFP4BlockScaling: {name} is {getattr(self, name)!r}; expected one of "
                    + ", ".join(map(repr, words))
                )
        check_fields(self)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name.startswith("disable_") and "fp4_quant_bwd_grad" in vars(self):
            self._follow_the_switches()

    def _follow_the_switches(self) -> None:
        rotated = not self.disable_rht
        self.fp4_quant_fwd_inp = QParams(random_hadamard_transform=rotated)
        self.fp4_quant_fwd_weight = QParams(fp4_2d_quantization=not self.disable_2d_quantization)
        self.fp4_quant_bwd_grad = QParams(
            random_hadamard_transform=rotated,
            stochastic_rounding=not self.disable_stochastic_rounding,
        )

    def _make_native(self) -> _C.Recipe:
        (rotates_inputs,) = quantization_of(self, "fp4_quant_fwd_inp", "random_hadamard_transform")
        (square_weights,) = quantization_of(self, "fp4_quant_fwd_weight", "fp4_2d_quantization")
        rotates_gradients, rounds_by_chance = quantization_of(
            self, "fp4_quant_bwd_grad", "random_hadamard_transform", "stochastic_rounding"
        )
        if rotates_inputs != rotates_gradients:
            raise _C.UsageError(
                "NVFP4BlockScaling: random_hadamard_transform is "
                f"{rotates_inputs} in fp4_quant_fwd_inp and {rotates_gradients} in "
                "fp4_quant_bwd_grad; it must be the same in both, since wgrad multiplies them"
            )
        return _C.make_nvfp4_block_scaling(
            disable_rht=not rotates_inputs,
            disable_stochastic_rounding=not rounds_by_chance,
            disable_2d_quantization=not square_weights,
            row_scaled_activation=self.row_scaled_activation,
            four_over_six=(
                self.nvfp4_4over6,
                self.nvfp4_4over6_e4m3_use_256,
                self.nvfp4_4over6_err_mode == "MSE",
            ),
            override_linear_precision=linear_precision(self),
        )
