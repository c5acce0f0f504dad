"""Objects that feature classes and scripts touch."""

from statement import Statement

TENSOR = "python/telens/pytorch/tensor/__init__.py"
QUANTIZERS = "python/bindings/quantizers.cpp"
ATTRIBUTES = "test_transformer_engine_attributes.py::"
STORAGE = "python/bindings/quantized_tensor.cpp"
QUANTIZATION = "python/telens/pytorch/quantization.py"
OBJECTS = "test_contract_objects.py::"

STATEMENTS = (
    Statement(
        "Tensors and quantizers are importable from `telens.pytorch`, `telens.pytorch.tensor`, and "
        "its modules `float8_tensor`, `float8_blockwise_tensor`, `mxfp8_tensor`, `nvfp4_tensor` "
        "and `quantized_tensor`.",
        OBJECTS + "test_tensors_and_quantizers_are_importable_where_transformer_engine_has_them",
        "python/telens/pytorch/tensor/mxfp8_tensor.py",
        "import MXFP8Quantizer, MXFP8Tensor",
        "import Float8Quantizer as MXFP8Quantizer, MXFP8Tensor",
    ),
    Statement(
        "`telens.pytorch.DType` has `kFloat8E4M3`, `kFloat8E5M2` and `kFloat4E2M1`.",
        OBJECTS + "test_the_low_precision_dtypes_have_transformer_engines_names",
        STORAGE,
        '.value("kFloat4E2M1", FormatId::e2m1)',
        '.value("kFloat4E2M1_", FormatId::e2m1)',
    ),
    Statement(
        "`telens.common.recipe.Format.E4M3.value.max_fwd` is 448, and its kin.",
        OBJECTS + "test_a_format_tells_its_largest_values",
        "python/telens/common/recipe_base.py",
        "E5M2 = _LargestValues(max_fwd=57344, max_bwd=57344)",
        "E5M2 = _LargestValues(max_fwd=61440, max_bwd=57344)",
    ),
    Statement(
        "`Float8Quantizer(scale, amax, fp8_dtype, *, rowwise=True, columnwise=True)`.",
        OBJECTS + "test_quantizers_take_the_arguments_of_transformer_engine",
        QUANTIZERS,
        "format, std::move(scale), std::move(amax), Usage{rowwise, columnwise});",
        "format, std::move(scale), std::move(amax), Usage{rowwise, true});",
    ),
    Statement(
        "It multiplies by its scale and collects the amax.",
        "test_quantized_tensor.py::test_a_known_scale_is_multiplied_and_the_amax_is_collected",
        "core/quantization/delayed_scaling.cpp",
        "  return quantize_with_scale(x, {scale_, amax_, format()}, usage);",
        "  return quantize_with_scale(x, {scale_, amax_.clone(), format()}, usage);",
    ),
    Statement(
        "`Float8CurrentScalingQuantizer(fp8_dtype, device, *, rowwise, columnwise, "
        "with_amax_reduction, amax_reduction_group, force_pow_2_scales, amax_epsilon)`.",
        OBJECTS + "test_quantizers_take_the_arguments_of_transformer_engine",
        QUANTIZERS,
        "CurrentScalingOptions{force_pow_2_scales, amax_epsilon}",
        "CurrentScalingOptions{false, amax_epsilon}",
    ),
    Statement(
        "With `with_amax_reduction` the scale is made of the largest amax over "
        "`amax_reduction_group`, or over all ranks, in Float8CurrentScalingQuantizer and "
        "NVFP4Quantizer.",
        "test_amax_reduction.py::test_parts_of_a_tensor_get_the_codes_of_the_whole",
        "core/quantization/nvfp4_scaling.cpp",
        "  reduction.add(amaxes, amax_reduction_group());\n",
        "",
    ),
    Statement(
        "`MXFP8Quantizer(fp8_dtype, *, rowwise, columnwise, with_2d_quantization=False)`.",
        OBJECTS + "test_quantizers_of_block_formats_take_the_arguments_of_transformer_engine",
        QUANTIZERS,
        'py::arg("with_2d_quantization") = false,\n           py::arg("scale_rounding")',
        'py::arg("with_2d") = false,\n           py::arg("scale_rounding")',
    ),
    Statement(
        "`Float8BlockQuantizer(fp8_dtype, *, rowwise, columnwise, amax_epsilon=0.0, "
        "force_pow_2_scales=True, block_scaling_dim=2)`.",
        OBJECTS + "test_quantizers_of_block_formats_take_the_arguments_of_transformer_engine",
        QUANTIZERS,
        'py::arg("force_pow_2_scales") = true, py::arg("block_scaling_dim") = 2,',
        'py::arg("force_pow_2_scales") = true, py::arg("block_scaling_dims") = 2,',
    ),
    Statement(
        "`NVFP4Quantizer(fp4_dtype, rowwise, columnwise, with_rht, with_2d_quantization, "
        "stochastic_rounding, ...)`.",
        OBJECTS + "test_quantizers_of_block_formats_take_the_arguments_of_transformer_engine",
        QUANTIZERS,
        'py::arg("with_2d_quantization") = false, py::arg("stochastic_rounding") = false,',
        'py::arg("with_2d_quantization") = false, py::arg("stochastic_round") = false,',
    ),
    Statement(
        "`NVFP4Quantizer(nvfp4_use_4over6=True, nvfp4_e4m3_max=, nvfp4_4over6_err_mode=)` scales "
        "each block to 4 or to 6, whichever leaves the smaller error, and so does the recipe's "
        "`nvfp4_4over6` the tensors of its scope.",
        "test_four_over_six.py::test_blocks_are_those_of_numpy",
        "core/ops/four_over_six_formula.h",
        "return error_of_four < error_of_six;",
        "return error_of_four <= error_of_six;",
    ),
    Statement(
        "`NVFP4Quantizer(row_scaled_nvfp4=True)` gives each row, columnwise each column, an FP32 "
        "scale of its own in the tensor's place, and so does the recipe's `row_scaled_activation` "
        "activations.",
        "test_row_scaled.py::test_each_row_is_numpys_cast_of_a_tensor_of_its_own",
        "core/kernels/cpu/quantize/nvfp4_quantize.cpp",
        "scales[scales.size() == 1 ? 0 : static_cast<std::size_t>(line)]",
        "scales[scales.size() == 1 ? 0 : static_cast<std::size_t>(line) / 2]",
    ),
    Statement(
        "Their products are those of the values.",
        "test_row_scaled.py::test_products_are_those_of_the_values_whatever_a_row_s_scale",
        "core/ops/gemm_by_rows.cpp",
        "b_.tensor_scale.to(at::kDouble).view({1, -1})",
        "b_.tensor_scale.to(at::kDouble).view({1, -1}).abs().fill_(1)",
    ),
    Statement(
        "A CustomRecipe's quantizer with a method `qgemm`, of Transformer Engine's signature, "
        "multiplies its tensors itself.",
        "test_own_gemm.py::test_the_three_products_of_a_layer_are_those_of_the_quantizers",
        "core/gemm/gemm.cpp",
        "if (own) return run_own(",
        "if (own && sum.defined()) return run_own(",
    ),
    Statement(
        "They yield an `MXFP8Tensor`, a `Float8BlockwiseQTensor` and an `NVFP4Tensor`.",
        OBJECTS + "test_quantizers_of_block_formats_take_the_arguments_of_transformer_engine",
        TENSOR,
        "_C.ScalingMode.nvfp4: NVFP4Tensor,",
        "_C.ScalingMode.nvfp4: MXFP8Tensor,",
    ),
    Statement(
        "A quantizer is called on a tensor, and has `quantize`, `update_quantized(src, dst)`, "
        "`make_empty`, `set_usage`, `calibrate` and `copy`.",
        OBJECTS + "test_a_quantizer_is_called_and_has_the_methods_of_the_contract",
        QUANTIZERS,
        "quantizer.calibrate(tensor);",
        "static_cast<void>(tensor);",
    ),
    Statement(
        "`update_quantized` writes into the codes of its target.",
        "test_quantized_tensor.py::test_update_quantized_writes_into_the_same_codes",
        QUANTIZERS,
        "  quantizer.quantize_into(source, storage);",
        "  storage = quantizer.quantize(source);",
    ),
    Statement(
        "`set_usage` decides which orientations are made.",
        "test_quantized_tensor.py::test_usage_decides_the_orientations",
        QUANTIZERS,
        "columnwise.value_or(usage.columnwise)});",
        "usage.columnwise});",
    ),
    Statement(
        "A `QuantizedTensor` is a torch.Tensor whose dtype is the high-precision one, with "
        "`dequantize(dtype=None)`, `quantize_`, `update_usage`, `detach`, `float`, `bfloat16` and "
        "`half`.",
        OBJECTS + "test_a_quantized_tensor_is_a_tensor_of_the_high_precision_dtype",
        TENSOR,
        "return self._storage.dequantize(rounded_to).to(dtype)",
        "return self._storage.dequantize(self.dtype)",
    ),
    Statement(
        "Operations on it see its values.",
        "test_quantized_tensor.py::test_operations_see_the_dequantized_values",
        TENSOR,
        "return self.dequantize(torch.bfloat16)",
        "return self.dequantize(torch.float16)",
    ),
    Statement(
        "`is_fp8_available(return_reason=)` and its kin for mxfp8, nvfp4, fp8_block_scaling and "
        "bf16 are true where it runs, emulated or not, and the reason says how *(ours: the peer "
        "knows no emulation)*.",
        "test_availability.py::test_what_is_emulated_is_available_and_the_reason_says_so",
        "python/telens/pytorch/availability.py",
        'return True, f"{what} runs emulated exactly on the CPU: {why}"',
        'return False, f"{what} runs emulated exactly on the CPU: {why}"',
    ),
    Statement(
        "`check_fp8_support()` and its kin, also as `FP8GlobalStateManager.is_fp8_available()`, "
        "return the pair.",
        "test_availability.py::test_scripts_ask_by_the_names_of_each_version",
        QUANTIZATION,
        "is_fp8_available = staticmethod(availability.check_fp8_support)",
        "is_fp8_available = staticmethod(availability.is_fp8_available)",
    ),
    Statement(
        '`module.fp8_meta["scaling_fwd"]` and `["scaling_bwd"]` have `scale`, `scale_inv` and '
        "`amax_history` of the module's GEMMs as they are at the moment; what is written there the "
        "next cast uses.",
        "test_fp8_meta.py::test_what_is_shown_is_live_and_what_is_written_the_next_cast_uses",
        "python/bindings/fp8_state.cpp",
        "return Window(window.amax_history, window.scale);",
        "return Window(window.amax_history, window.scale.clone());",
    ),
    Statement(
        '`module.quantizers["scaling_fwd"][i]` is the layer\'s own: input, weight and output of '
        "each GEMM; backward the gradients of output and input.",
        "test_fp8_meta.py::test_quantizers_stand_in_the_order_of_the_slots_and_are_the_layers_own",
        "python/bindings/fp8_state.cpp",
        "if (is_backward(role) == backward) all.append(own_quantizer(own[role]));",
        "if (is_backward(role) == backward) all.insert(0, own_quantizer(own[role]));",
    ),
    Statement(
        "`fp8_model_init(preserve_high_precision_init_val=True)` keeps the values before "
        "quantization as `_high_precision_init_val` of the parameter.",
        "test_quantized_tensor.py::"
        "test_the_values_before_quantization_are_kept_on_the_parameter_under_the_peers_names",
        "python/telens/pytorch/tensor/initial_values.py",
        "parameter._high_precision_init_val = value",
        "parameter._high_precision_init_val = value.clone().zero_()",
    ),
    Statement(
        "Every argument of Transformer Engine's modules is taken at its default; another value of "
        "one that is not there yet is refused by its name *(ours)*.",
        "test_neutral_arguments.py::test_another_value_is_refused_by_the_name_of_the_argument",
        "python/telens/pytorch/neutral_arguments.py",
        "if not argument.takes(given[name], context):",
        "if False:",
    ),
    Statement(
        "`FP8GlobalStateManager.reset()` may be called, and the manager be asked.",
        OBJECTS + "test_the_global_state_manager_can_be_reset_and_asked",
        QUANTIZATION,
        "        return _C.is_fp8_enabled()",
        "        return True",
    ),
    Statement(
        "Tensors show `_fp8_dtype` and `_get_quantizer()`, and `_data`, `_transpose` and "
        "`_scale_inv`, or with scales of blocks `_rowwise_data`, `_rowwise_scale_inv`, "
        "`_columnwise_data` and `_columnwise_scale_inv`.",
        ATTRIBUTES + "test_a_tensor_with_one_scale_shows_codes_scale_and_format",
        "python/telens/pytorch/tensor/data.py",
        "return storage.columnwise_scale_inv if rowwise is None else rowwise",
        "return rowwise",
    ),
    Statement(
        "`Float8Quantizer` takes `scale` and `amax` of any dtype.",
        ATTRIBUTES + "test_scale_and_amax_of_another_dtype_are_converted",
        "python/telens/pytorch/tensor/quantizer_arguments.py",
        "return value.to(torch.float32) if",
        "return value if",
    ),
    Statement(
        "A quantizer of FP8 refuses E2M1 by name *(ours)*.",
        ATTRIBUTES + "test_a_quantizer_of_fp8_refuses_e2m1_by_name",
        "python/telens/pytorch/tensor/quantizer_arguments.py",
        "if fp8_dtype not in _FP8:",
        "if False:",
    ),
)
