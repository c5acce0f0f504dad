"""Functions and arguments of Transformer Engine's modules on one device."""

from statement import Statement

CROSS_ENTROPY = "test_cross_entropy.py::"
LOSSES = "python/telens/pytorch/cross_entropy.py"
DELAYED = "test_delayed_wgrads.py::"
REQUESTED = "test_delayed_scaling_requests.py::"
ROTARY = "test_rotary_embedding.py::"
TURNS = "core/modules/attention/rotary_embedding.cpp"
MLP = "test_mlp_arguments.py::"
CARRIED = "test_carried_codes.py::"
PARAMETERS = "test_grouped_parameters.py::"
MODULE = "python/telens/pytorch/module.py"

STATEMENTS = (
    Statement(
        "`parallel_cross_entropy` gives losses and gradients of torch's cross entropy, with "
        "`label_smoothing`, `reduce_loss` and `ignore_idx`, and leaves the logits as they are "
        "*(ours)*.",
        CROSS_ENTROPY + "test_losses_and_gradients_are_those_of_torch",
        LOSSES,
        "return losses.sum() / counts.sum()",
        "return losses.mean()",
    ),
    Statement(
        "With `dist_process_group` each rank has its part of the vocabulary.",
        CROSS_ENTROPY + "test_a_divided_vocabulary_gives_the_loss_of_the_whole",
        LOSSES,
        "        _reduce(sums, dist.ReduceOp.SUM, group)\n",
        "",
    ),
    Statement(
        "A target that is ignored gives no gradient, also where its logits are NaN *(ours)*.",
        CROSS_ENTROPY + "test_ignored_rows_have_no_loss_and_no_gradient_whatever_they_hold",
        LOSSES,
        "block.masked_fill_(~counts[rows].unsqueeze(1), 0).to(result.dtype)",
        "block.to(result.dtype)",
    ),
    Statement(
        "An input or a gradient that is changed in place while it waits for `backward_dw` is an "
        "error *(ours)*.",
        "test_delayed_wgrads.py::test_operands_that_are_changed_while_they_wait_are_told",
        "core/modules/layer/delayed_wgrads.cpp",
        "if (version == version_) return;",
        "return;",
    ),
    Statement(
        "A gradient that waits for `backward_dw` becomes no leaf's `.grad`.",
        "test_delayed_wgrads.py::test_the_gradient_that_waits_becomes_no_leafs_own",
        "core/modules/layer/linear_backward.cpp",
        "plain->is_alias_of(grad_output) ? grad_output : *plain",
        "*plain",
    ),
    Statement(
        "`delay_wgrad_compute`: the backward leaves weights' gradients to `backward_dw`, with the "
        "same bits, under every recipe.",
        DELAYED + "test_gradients_have_the_bits_of_those_that_the_backward_makes",
        "core/modules/layer/linear_autograd.cpp",
        "if (needs.wgrad && arguments.call.delays_wgrad) {",
        "if (false) {",
    ),
    Statement(
        "Each `backward_dw` makes those of the oldest backward.",
        DELAYED + "test_each_call_makes_those_of_the_oldest_backward",
        "core/modules/layer/delayed_wgrads.cpp",
        "return each.backward == backwards[backward];",
        "return each.backward == backwards.back();",
    ),
    Statement(
        "Gradients that wait keep no module in memory *(ours)*.",
        DELAYED + "test_what_waits_holds_no_layer_in_memory",
        "core/modules/layer/linear_backward.cpp",
        "  own->layer.reset();\n",
        "",
    ),
    Statement(
        "Rotary embeddings turn halves or, interleaved, neighbors of channels.",
        ROTARY + "test_channels_are_rotated_in_pairs",
        TURNS,
        "if (pairs == RotaryPairs::halves) {",
        "if (pairs != RotaryPairs::halves) {",
    ),
    Statement(
        "`apply_rotary_pos_emb` takes `start_positions`.",
        ROTARY + "test_channels_are_rotated_in_pairs",
        "python/telens/pytorch/attention/rope.py",
        "device=freqs.device)[:, None] + first",
        "device=freqs.device)[:, None] + 0 * first",
    ),
    Statement(
        "Packed sequences (thd) take `rotary_pos_emb`: each token by its place in its sequence, "
        "with and without gaps between them.",
        ROTARY + "test_a_layer_of_packed_sequences_rotates_each_from_its_start",
        TURNS,
        "token - first.index_select(0, (sequence - 1).clamp_min(0))",
        "token - 0 * first.index_select(0, (sequence - 1).clamp_min(0))",
    ),
    Statement(
        "`activation` may be glu or clamped_swiglu, with `activation_params`.",
        MLP + "test_composed_activations_are_their_formulas",
        "core/modules/fused/mlp_activation.cpp",
        "at::sigmoid(gate * alpha_)",
        "at::sigmoid(gate)",
    ),
    Statement(
        "`LayerNormMLP(checkpoint=True)` recomputes inside, with the same bits, copies of it too.",
        MLP + "test_a_checkpointed_mlp_keeps_less_and_has_the_same_bits",
        MODULE,
        '_recomputed(call) if "checkpoint" in self.__dict__ else call',
        "call",
    ),
    Statement(
        "`parameters_split` refuses parts without rows.",
        "test_mlp_arguments.py::test_parts_named_alone_are_equal_ones",
        "core/modules/linear/linear_parameters.cpp",
        "if (*part.out_features < 1) {",
        "if (*part.out_features < 0) {",
    ),
    Statement(
        "`parameters_split` takes names alone, of equal parts.",
        MLP + "test_parts_named_alone_are_equal_ones",
        "core/modules/linear/linear_parameters.cpp",
        "part.out_features = out_features / parts;",
        "part.out_features = out_features;",
    ),
    Statement(
        "A recipe's `backward_override` may be 'high_precision'.",
        "test_backward_override.py::test_a_backward_in_high_precision_is_the_override_of_both_gemms",
        "python/telens/common/recipe_parameters.py",
        "return fprop, dgrad or backward, wgrad or backward",
        "return fprop, dgrad or backward, wgrad",
    ),
    Statement(
        "It may be 'dequantized': dgrad and wgrad multiply the values of fprop's codes.",
        "test_backward_override.py::test_a_dequantized_backward_multiplies_what_fprop_multiplied",
        "core/modules/layer/gemm_operands.cpp",
        "return request_.second_needed ? first.dequantize().to(request_.dtype) : at::Tensor();",
        "return request_.tensor;",
    ),
    Statement(
        "A weight cached by a micro-batch without gradients serves no dequantized backward.",
        "test_backward_override.py::"
        "test_a_cache_without_the_backwards_operand_is_not_used_for_a_dequantized_backward",
        "core/modules/layer/weight_cache.cpp",
        "return !quantizes && std::get<at::Tensor>(cached).defined() &&",
        "return !quantizes &&",
    ),
    Statement(
        "A weight kept under one backward_override serves no forward under another.",
        "test_backward_override.py::test_a_kept_weight_serves_no_recipe_of_another_override",
        "core/modules/layer/weight_cache.cpp",
        "dequantized_ == dequantizes(context);",
        "dequantized_ == dequantized_;",
    ),
    Statement(
        "A bool by position, where Transformer Engine has another argument, is warned of *(ours)*.",
        "test_neutral_arguments.py::"
        "test_a_bool_by_position_where_others_have_another_argument_is_warned_of",
        "python/telens/pytorch/positional_arguments.py",
        "        if isinstance(value, bool):\n            warnings.warn(",
        "        if isinstance(value, str):\n            warnings.warn(",
    ),
    Statement(
        "A CustomRecipe's factory is told the GEMMs of a GroupedLinear apart.",
        "test_custom_recipe.py::test_a_custom_recipe_is_told_the_gemms_of_a_grouped_linear_apart",
        "core/modules/linear/grouped_linear.cpp",
        'set_module_type("grouped_linear")',
        'set_module_type("linear")',
    ),
    Statement(
        "A CustomRecipe whose factory returns a DelayedScalingRequest for each tensor trains as "
        "DelayedScaling does, histories and checkpoints too.",
        REQUESTED + "test_where_all_tensors_are_requested_layers_train_as_under_delayed_scaling",
        "core/modules/layer/linear_layer.cpp",
        "  if (context.delayed == nullptr) return;\n",
        "  if (context.recipe->as_delayed_scaling() == nullptr) return;\n",
    ),
    Statement(
        "Tensors that it returns quantizers for keep these.",
        REQUESTED + "test_other_tensors_keep_their_own_quantizers",
        "core/quantization/custom_recipe.h",
        "return (*request)->make_quantizer(role, state);",
        "return (*request)->make_quantizer(is_backward(role) ? role : TensorRole::input, state);",
    ),
    Statement(
        "Requests for one layer that differ are an error by name, and the layer keeps what it had.",
        REQUESTED + "test_requests_that_differ_are_errors_by_name",
        "core/quantization/layer_quantization.cpp",
        "if (common && common != *request) {",
        "if (false) {",
    ),
    Statement(
        "`fp8_grad` of LayerNormLinear rounds the gradient before the norm's backward.",
        "test_fp8_outputs.py::test_behind_a_norm_the_gradient_is_rounded_before_the_norms_backward",
        "core/modules/fused/layer_norm_linear.cpp",
        ".fp8_grad = inputs.fp8_grad,",
        ".fp8_grad = false,",
    ),
    Statement(
        "The next layer takes the codes of an output in FP8 (`fp8_output`) without a cast.",
        CARRIED + "test_the_next_layer_takes_the_codes_of_an_output_without_a_cast",
        "core/quantization/carried_codes.cpp",
        "makes_such(*quantizer, *codes) ? codes : nullptr;",
        "false ? codes : nullptr;",
    ),
    Statement(
        "`fp8_output` of DotProductAttention in FP8 hands on the codes that a cast of its output "
        "by its quantizer makes, in every layout.",
        "test_handed_attention.py::test_the_codes_are_those_of_the_plain_output",
        "core/modules/attention/fp8_attention.cpp",
        "fp8->casts.output->scale(),\n",
        "fp8->quantizers.o->known_scale(),\n",
    ),
    Statement(
        "A recipe that does not cast attention's output refuses it by name *(ours)*.",
        "test_handed_attention.py::test_a_recipe_that_does_not_cast_the_output_is_refused_by_name",
        "core/modules/attention/attention_layer.cpp",
        "if (request.fp8_output && fp8.quantizers.o == nullptr) {",
        "if (false) {",
    ),
    Statement(
        "The layer before takes the codes of a gradient in FP8 (`fp8_grad`) without a cast.",
        CARRIED + "test_the_layer_before_takes_the_codes_of_a_gradient_without_a_cast",
        "core/modules/layer/linear_backward.cpp",
        "gathers ? std::nullopt : carried_gradient(backward, grad_output);",
        "std::nullopt;",
    ),
    Statement(
        "A gradient in FP8 that was changed in place is cast anew.",
        CARRIED + "test_a_gradient_that_a_hook_changed_in_place_is_cast_anew",
        "core/quantization/carried_codes.cpp",
        "const bool unchanged = meta->version == get_version(tensor) &&",
        "const bool unchanged =",
    ),
    Statement(
        "The products of a GroupedLinear that nothing casts or watches are one operation.",
        PARAMETERS + "test_products_of_all_maps_are_one_operation_with_the_bits_of_each_alone",
        "core/modules/linear/grouped_linear.cpp",
        "if (is_plain(call) && ",
        "if (is_plain(call) && false && ",
    ),
    Statement(
        "Casts and products of a GroupedLinear that nothing watches are one function of autograd, "
        "with the bits of each map alone *(ours)*.",
        PARAMETERS + "test_casts_of_all_maps_are_one_function_with_the_bits_of_each_alone",
        "core/modules/linear/grouped_linear.cpp",
        "if (runs_once(call) && ",
        "if (runs_once(call) && false && ",
    ),
    Statement(
        "With `_graph=True` the end of an outermost region leaves the scales of the forward alone.",
        "test_training.py"
        "::test_with_graph_the_end_of_the_outermost_region_leaves_forward_scales_alone",
        "core/quantization/autocast.cpp",
        "stack().empty() && left.options.updates_scales &&",
        "stack().empty() && (left.options.updates_scales || true) &&",
    ),
    Statement(
        "A region that an exception leaves updates no scale, waits for no other rank, and lets the "
        "exception through *(ours)*.",
        "test_broken_off_region.py::test_a_rank_sees_its_own_error_at_once_and_its_group_stays_in_step",
        "python/telens/pytorch/quantization.py",
        "region.abandon()",
        "region.exit()",
    ),
    Statement(
        "Checkpoints of a GroupedLinear with one weight and with many load into each other.",
        PARAMETERS + "test_checkpoints_of_one_parameter_and_of_many_load_into_each_other",
        "python/telens/pytorch/grouped_parameters.py",
        "elif whole in state_dict and",
        "elif False and",
    ),
    Statement(
        "`out` of GroupedLinear is written over only where no backward needs it any more.",
        PARAMETERS + "test_results_are_written_into_buffers_of_the_callers",
        "core/modules/linear/landed_rows.cpp",
        "count_change(place);",
        "",
    ),
    Statement(
        "`fp8_model_init` stores parts of a weight (`parameters_split`) under their own scales.",
        "test_stored_parts.py::test_a_stored_weight_in_parts_has_the_bits_of_layers_of_each_part",
        "core/modules/layer/linear_backward.cpp",
        "get_columns(gradient, first, rows)",
        "get_columns(gradient, 0, rows)",
    ),
    Statement(
        "`data` of a weight that `fp8_model_init` stores refuses, by name, what is no tensor, "
        "other shapes, other kinds of codes, and other dtypes than BF16, FP16 and FP32 "
        "(`layer.double()`).",
        "test_stored_weights.py::test_data_that_a_stored_weight_cannot_have_is_an_error",
        "python/telens/pytorch/tensor/moved_codes.py",
        "    if other.shape != tensor.shape:\n",
        "    if False:\n",
    ),
)
