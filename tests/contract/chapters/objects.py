"""The objects that feature classes and scripts use."""

from statement import Statement

ATTRIBUTES = "test_transformer_engine_attributes.py::"
OBJECTS = "test_contract_objects.py::"

STATEMENTS = (
    Statement(
        "Tensors and quantizers are importable from `telens.pytorch`, `telens.pytorch.tensor`, and "
        "its modules `float8_tensor`, `float8_blockwise_tensor`, `mxfp8_tensor`, `nvfp4_tensor` "
        "and `quantized_tensor`.",
        OBJECTS + "test_tensor_classes_have_te_import_paths",
    ),
    Statement(
        "`telens.pytorch.DType` has `kFloat8E4M3`, `kFloat8E5M2` and `kFloat4E2M1`.",
        OBJECTS + "test_the_low_precision_dtypes_have_transformer_engines_names",
    ),
    Statement(
        "`telens.common.recipe.Format.E4M3.value.max_fwd` is 448, and the other formats have "
        "their largest values.",
        OBJECTS + "test_formats_have_their_largest_values",
    ),
    Statement(
        "The constructor of Float8Quantizer is `Float8Quantizer(scale, amax, fp8_dtype, *, "
        "rowwise=True, columnwise=True)`.",
        OBJECTS + "test_quantizers_take_the_arguments_of_transformer_engine",
    ),
    Statement(
        "Float8Quantizer multiplies by its scale and collects the amax.",
        "test_quantized_tensor.py::test_a_known_scale_is_multiplied_and_the_amax_is_collected",
    ),
    Statement(
        "The constructor of Float8CurrentScalingQuantizer is "
        "`Float8CurrentScalingQuantizer(fp8_dtype, device, *, rowwise, columnwise, "
        "with_amax_reduction, amax_reduction_group, force_pow_2_scales, amax_epsilon)`.",
        OBJECTS + "test_quantizers_take_the_arguments_of_transformer_engine",
    ),
    Statement(
        "With `with_amax_reduction` the scale is computed from the largest amax over "
        "`amax_reduction_group`, or over all ranks, in Float8CurrentScalingQuantizer and "
        "NVFP4Quantizer.",
        "test_amax_reduction.py::test_parts_of_a_tensor_get_the_codes_of_the_whole",
    ),
    Statement(
        "The constructor of MXFP8Quantizer is `MXFP8Quantizer(fp8_dtype, *, rowwise, columnwise, "
        "with_2d_quantization=False)`.",
        OBJECTS + "test_block_quantizers_accept_te_arguments",
    ),
    Statement(
        "The constructor of Float8BlockQuantizer is `Float8BlockQuantizer(fp8_dtype, *, rowwise, "
        "columnwise, amax_epsilon=0.0, force_pow_2_scales=True, block_scaling_dim=2)`.",
        OBJECTS + "test_block_quantizers_accept_te_arguments",
    ),
    Statement(
        "The constructor of NVFP4Quantizer is `NVFP4Quantizer(fp4_dtype, rowwise, columnwise, "
        "with_rht, with_2d_quantization, stochastic_rounding, ...)`.",
        OBJECTS + "test_block_quantizers_accept_te_arguments",
    ),
    Statement(
        "`NVFP4Quantizer(nvfp4_use_4over6=True, nvfp4_e4m3_max=, nvfp4_4over6_err_mode=)` scales "
        "each block to 4 or to 6, whichever leaves the smaller error, and so does the recipe's "
        "`nvfp4_4over6` the tensors of its scope.",
        "test_four_over_six.py::test_blocks_match_numpy",
    ),
    Statement(
        "`NVFP4Quantizer(row_scaled_nvfp4=True)` gives each row, columnwise each column, an "
        "FP32 scale instead of the tensor's, and so does the recipe's `row_scaled_activation` "
        "for activations.",
        "test_row_scaled.py::test_each_row_matches_a_separate_numpy_cast",
    ),
    Statement(
        "Products of row-scaled NVFP4 tensors equal the products of their values.",
        "test_row_scaled.py::test_products_are_independent_of_row_scales",
    ),
    Statement(
        "A CustomRecipe's quantizer with a method `qgemm`, of Transformer Engine's signature, "
        "multiplies its tensors itself.",
        "test_own_gemm.py::test_three_products_use_the_quantizers_qgemm",
    ),
    Statement(
        "MXFP8Quantizer, Float8BlockQuantizer and NVFP4Quantizer return an `MXFP8Tensor`, a "
        "`Float8BlockwiseQTensor` and an `NVFP4Tensor`.",
        OBJECTS + "test_block_quantizers_accept_te_arguments",
    ),
    Statement(
        "A quantizer is called on a tensor, and has `quantize`, `update_quantized(src, dst)`, "
        "`make_empty`, `set_usage`, `calibrate` and `copy`.",
        OBJECTS + "test_a_quantizer_is_called_and_has_the_methods_of_the_contract",
    ),
    Statement(
        "`update_quantized` writes into the codes of its target.",
        "test_quantized_tensor.py::test_update_quantized_writes_into_the_same_codes",
    ),
    Statement(
        "`set_usage` decides which orientations are made.",
        "test_quantized_tensor.py::test_usage_decides_the_orientations",
    ),
    Statement(
        "A `QuantizedTensor` is a torch.Tensor whose dtype is the high-precision one, with "
        "`dequantize(dtype=None)`, `quantize_`, `update_usage`, `detach`, `float`, `bfloat16` and "
        "`half`.",
        OBJECTS + "test_a_quantized_tensor_is_a_tensor_of_the_high_precision_dtype",
    ),
    Statement(
        "Operations on a `QuantizedTensor` use its dequantized values.",
        "test_quantized_tensor.py::test_operations_see_the_dequantized_values",
    ),
    Statement(
        "`is_fp8_available(return_reason=)` and its counterparts for mxfp8, nvfp4, "
        "fp8_block_scaling and bf16 are true if the format runs, emulated or not, and the "
        "reason says how *(ours: the peer has no emulation)*.",
        "test_availability.py::test_emulated_formats_are_available_with_a_reason",
    ),
    Statement(
        "`check_fp8_support()` and its counterparts for other formats, also as "
        "`FP8GlobalStateManager.is_fp8_available()`, return the pair.",
        "test_availability.py::test_availability_functions_of_every_version_exist",
    ),
    Statement(
        '`module.fp8_meta["scaling_fwd"]` and `["scaling_bwd"]` have the current `scale`, '
        "`scale_inv` and `amax_history` of the GEMMs; the next cast uses values that "
        "are written there.",
        "test_fp8_meta.py::test_fp8_meta_is_live_and_the_next_cast_uses_writes",
    ),
    Statement(
        '`module.quantizers["scaling_fwd"][i]` is the layer\'s quantizer: input, weight and '
        "output per GEMM; backward the gradients of output and input.",
        "test_fp8_meta.py::test_quantizers_are_the_layers_in_slot_order",
    ),
    Statement(
        "`fp8_model_init(preserve_high_precision_init_val=True)` keeps the values before "
        "quantization as `_high_precision_init_val` of the parameter.",
        "test_quantized_tensor.py::test_initial_values_are_kept_under_the_peers_names",
    ),
    Statement(
        "Every argument of Transformer Engine's modules is accepted at its default; other "
        "values of unsupported arguments are rejected *(ours)*.",
        "test_neutral_arguments.py::test_another_value_is_refused_by_the_name_of_the_argument",
    ),
    Statement(
        "`FP8GlobalStateManager.reset()` may be called, and the manager be asked.",
        OBJECTS + "test_the_global_state_manager_can_be_reset_and_asked",
    ),
    Statement(
        "Tensors show `_fp8_dtype` and `_get_quantizer()`, and `_data`, `_transpose` and "
        "`_scale_inv`, or with scales of blocks `_rowwise_data`, `_rowwise_scale_inv`, "
        "`_columnwise_data` and `_columnwise_scale_inv`.",
        ATTRIBUTES + "test_a_tensor_with_one_scale_shows_codes_scale_and_format",
    ),
    Statement(
        "`Float8Quantizer` takes `scale` and `amax` of any dtype.",
        ATTRIBUTES + "test_scale_and_amax_of_another_dtype_are_converted",
    ),
    Statement(
        "A quantizer of FP8 refuses E2M1 by name *(ours)*.",
        ATTRIBUTES + "test_a_quantizer_of_fp8_refuses_e2m1_by_name",
    ),
)
