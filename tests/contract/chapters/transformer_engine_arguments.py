"""Functions and arguments of Transformer Engine's modules on one device."""

from statement import Statement

CROSS_ENTROPY = "test_cross_entropy.py::"
LOSSES = "python/telens/pytorch/cross_entropy.py"
DELAYED = "test_delayed_wgrads.py::"
ROTARY = "test_rotary_embedding.py::"
TURNS = "core/modules/attention/rotary_embedding.cpp"
MLP = "test_mlp_arguments.py::"
CARRIED = "test_carried_codes.py::"
PARAMETERS = "test_grouped_parameters.py::"
MODULE = "python/telens/pytorch/module.py"
DPA = "test_fp8_attention.py::"
OF_BLOCKS = "test_block_attention.py::"
MHA = "test_fp8_mha.py::"
BLOCKS = "test_blocked_attention.py::"
RECIPE = "test_attention_recipe.py::"
CHANGES = "test_score_mod.py::"
MASK_RULE = "core/modules/attention/mask_rule.cpp"
SWITCHES = "core/modules/attention/attention_kernels.cpp"

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
        "oldest = waiting_.front().backward;",
        "oldest = waiting_.back().backward;",
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
        "`NVTE_FLASH_ATTN`, `NVTE_FUSED_ATTN` and `NVTE_UNFUSED_ATTN` switch kernels of attention "
        "off, for the call alone *(ours: torch's own switches, of all threads)*.",
        "test_attention_switches.py::"
        "test_without_flash_math_gives_the_same_within_rounding_and_torchs_switches_are_back",
        SWITCHES,
        "before.flash && flash",
        "before.flash",
    ),
    Statement(
        "Where they leave no kernel, the error names them *(ours)*.",
        "test_attention_switches.py::"
        "test_a_kernel_that_does_not_take_the_heads_is_an_error_that_says_which_takes_all",
        "core/modules/attention/attention_choice.cpp",
        "get_kernel(attention) != SDPBackend::error) return;",
        "true) return;",
    ),
    Statement(
        "PrecisionLedger *(ours)* names the kernel that an attention ran with, and what rules out "
        "a faster one.",
        "test_attention_ledger.py::"
        "test_the_kernel_is_the_one_that_ran_and_the_reason_what_rules_out_flash",
        "core/modules/attention/attention_choice.cpp",
        "if (speed_without(attention, others) < best) {",
        "if (true) {",
    ),
    Statement(
        "`fp8_dpa` casts query, key and value, softmax and output of DotProductAttention, and the "
        "gradients of output, scores and inputs.",
        DPA + "test_current_scaling_is_the_formulas_forward_and_backward",
        "core/modules/attention/fp8_attention.cpp",
        "newest_ = {of_weights.sub_(delta).mul_(weights), std::move(delta)};",
        "newest_ = {of_weights.mul_(weights), std::move(delta)};",
    ),
    Statement(
        "Under delayed scaling attention has scales and histories of its own, in Transformer "
        "Engine's slots.",
        DPA + "test_delayed_scaling_takes_each_scale_from_the_amaxes_before",
        "core/modules/attention/attention_quantization.cpp",
        ".d_p = quantizer(kSoftmax, TensorRole::grad_input)",
        ".d_p = quantizer(kOutput, TensorRole::grad_input)",
    ),
    Statement(
        "They are saved in `_extra_state`.",
        DPA + "test_the_state_is_kept_by_state_dict_and_only_where_there_is_any",
        "core/modules/attention/dot_product_attention.h",
        "layer_.quantization().set_extra_state(bytes);",
        "static_cast<void>(bytes);",
    ),
    Statement(
        "FP8 attention takes biases, a learnable softmax and padding *(ours)*.",
        DPA + "test_bias_sink_and_padding_are_those_of_the_scores",
        "core/modules/attention/attention_rules.cpp",
        "if (bias.defined()) scores.add_(bias);",
        "",
    ),
    Statement(
        "A checkpoint around FP8 attention changes no bit, with dropout too.",
        DPA + "test_a_recomputed_attention_has_the_bits_of_a_kept_one",
        "core/modules/attention/attention_quantization.cpp",
        "contexts[group] = recomputation::replay_context(groups_[group].get(), name);",
        "contexts[group] = recomputation::replay_context(groups_[group].get(), name);"
        "contexts[group].quantizers = groups_[group]->newest_quantizers();",
    ),
    Statement(
        "Float8BlockScaling and NVFP4BlockScaling refuse `fp8_dpa` and `fp8_mha` by name *(ours)*.",
        DPA + "test_recipes_that_no_attention_casts_by_refuse_it",
        "python/telens/common/recipe_parameters.py",
        "if value in (True,) and name not in taken",
        "if False and name not in taken",
    ),
    Statement(
        "`MXFP8BlockScaling(fp8_dpa=True)` casts query, key, value and the output's gradient for "
        "each product of attention in blocks along what it adds over.",
        OF_BLOCKS + "test_each_product_multiplies_blocks_along_what_it_adds_over",
        "core/modules/attention/fp8_attention.cpp",
        ".copy_(sum_over_keys(of_scores, block.of_keys(heads_.key.over_positions)));",
        ".copy_(sum_over_keys(of_scores, block.of_keys(heads_.key.over_size)));",
    ),
    Statement(
        "Its backward sums up the output times its gradient as both are outside.",
        OF_BLOCKS + "test_each_product_multiplies_blocks_along_what_it_adds_over",
        "core/modules/attention/fp8_attention.cpp",
        ": output_gradient.to(at::kFloat);",
        ": output_gradient_.rows.over_size;",
    ),
    Statement(
        "It refuses `fp8_mha` by name, also where NVTE_DPA_FP8_RECIPE chooses it.",
        OF_BLOCKS + "test_no_projection_takes_its_blocks_over",
        "core/modules/attention/attention_recipe.cpp",
        "if (made_) check_handed_casts(*made_);",
        "if (false) check_handed_casts(*made_);",
    ),
    Statement(
        "PrecisionLedger *(ours)* says that its codes are in blocks.",
        OF_BLOCKS + "test_the_ledger_says_the_scaling",
        "core/modules/attention/fp8_attention.cpp",
        ".cast_in = fp8.quantizers.qkv->mode()",
        ".cast_in = ScalingMode::tensor",
    ),
    Statement(
        "`NVTE_DPA_FP8CS_O_in_F16=0` has the backward of attention in current scaling sum up the "
        "output's codes.",
        DPA + "test_a_variable_has_the_backward_sum_up_the_outputs_codes",
        "core/modules/attention/fp8_attention.cpp",
        "if (!fp8.sums_output_codes) return {values, {}, {}};",
        "return {values, {}, {}};",
    ),
    Statement(
        "With `fp8_mha` the projection behind attention multiplies the codes of its output.",
        MHA + "test_proj_multiplies_the_codes_of_the_attentions_output",
        "core/modules/layer/linear_layer.cpp",
        "follow(TensorRole::input, input_cast);",
        "follow(TensorRole::input, nullptr);",
    ),
    Statement(
        "The projections in front of it multiply the codes of its inputs' gradients.",
        MHA + "test_under_delayed_scaling_no_cast_between_attention_and_projections_has_a_history",
        "core/modules/layer/linear_layer.cpp",
        "follow(TensorRole::grad_output, gradient_cast);",
        "follow(TensorRole::grad_output, nullptr);",
    ),
    Statement(
        "Behind a rotary embedding or a norm of queries and keys they cast for themselves.",
        MHA + "test_what_lies_between_makes_the_projection_cast_the_gradient_itself",
        "core/modules/transformer/multihead_attention.cpp",
        "hand(query_.get(), changed);",
        "hand(query_.get(), false);",
    ),
    Statement(
        "PrecisionLedger *(ours)* says that an attention ran in FP8.",
        MHA + "test_watched_tensors_change_no_bit_and_the_ledger_says_fp8",
        "features/precision_ledger/precision_ledger.cpp",
        "const bool cast = !entry.choice.cast_to.empty();",
        "const bool cast = false;",
    ),
    Statement(
        "On a CPU no attention has a matrix of more than 2,048 x 2,048 scores in memory, whatever "
        "its mask, bias, softmax or dropout *(ours)*.",
        BLOCKS + "test_no_matrix_of_all_scores_stands_in_memory",
        "core/modules/attention/attention_path.cpp",
        "if (runs_in_blocks(heads, rules)) return attend_in_blocks(heads, rules);",
        "",
    ),
    Statement(
        "FP8 attention has none either.",
        BLOCKS + "test_no_matrix_of_all_scores_stands_in_memory",
        "core/modules/attention/fp8_attention.cpp",
        "make_blocked_scores(query, heads.key.over_size, rules);",
        "{.shape = score_shape(query, heads.key.over_size), "
        ".scores_of_block = std::int64_t{1} << 40};",
    ),
    Statement(
        "Attention in blocks drops the same weights whatever their size *(ours)*.",
        BLOCKS + "test_dropout_is_the_same_in_blocks_of_any_size",
        "core/modules/attention/score_dropout.cpp",
        ".query = block.query,",
        ".query = 0,",
    ),
    Statement(
        "A mask that is changed in place between the forward in blocks and its backward is an "
        "error *(ours)*.",
        BLOCKS + "test_a_mask_that_was_changed_before_the_backward_is_an_error",
        MASK_RULE,
        "get_version(hidden_) != version_) {",
        "false) {",
    ),
    Statement(
        "A mask of type arbitrary that does not broadcast to the scores is an error *(ours)*.",
        BLOCKS + "test_a_mask_that_does_not_broadcast_is_an_error",
        MASK_RULE,
        '    check_broadcast("attention_mask", hidden_.sizes(), sizes);\n',
        "",
    ),
    Statement(
        "`score_mod(graph, score, tensors)` changes scores, on every device, by the operations of "
        "cuDNN's graph or by torch's *(ours: Transformer Engine needs cuDNN's frontend)*.",
        CHANGES + "test_it_is_the_formula_in_blocks_of_any_size",
        "python/telens/pytorch/score_graph.py",
        "first, count = self._firsts[axis], input.shape[axis]",
        "first, count = 0, input.shape[axis]",
    ),
    Statement(
        "`score_mod_bprop` takes the place of autograd.",
        CHANGES + "test_a_gradient_that_is_given_is_used",
        "core/modules/attention/blocked_attention.cpp",
        "if (rules_.change.gradient) return rules_.change.gradient(of_scores, block);",
        "if (rules_.change.gradient) return of_scores;",
    ),
    Statement(
        "What does not go with `score_mod` in Transformer Engine is refused by name.",
        CHANGES + "test_what_does_not_go_with_it_is_refused_by_name",
        "core/modules/attention/dot_product_attention.cpp",
        'refuse(options_.attention_dropout != 0, "attention_dropout", "make the module with 0");',
        "",
    ),
    Statement(
        "Threads that run one MultiheadAttention under `fp8_mha` at the same time hand on their "
        "own scales *(ours)*.",
        MHA + "test_threads_hand_each_its_own_scales",
        "core/quantization/handed_cast.cpp",
        "return {std::this_thread::get_id(), torch::autograd::get_current_graph_task_id()};",
        "return {};",
    ),
    Statement(
        "`NVTE_DPA_FP8_RECIPE` and its options choose another recipe for attention than the "
        "autocast's.",
        RECIPE + "test_attention_has_the_bits_of_the_recipe_that_the_variable_names",
        "core/modules/attention/attention_recipe.cpp",
        "made->amax_history_len = history_length();",
        "",
    ),
    Statement(
        "With it Float8BlockScaling and NVFP4BlockScaling take `fp8_dpa`.",
        RECIPE + "test_a_recipe_of_block_scales_may_have_another_for_attention",
        "python/telens/common/recipe_parameters.py",
        " and ATTENTION_RECIPE not in os.environ",
        "",
    ),
    Statement(
        "`NVTE_FP8_DPA_BWD=0` leaves the backward of FP8 attention to high precision.",
        RECIPE + "test_a_backward_may_be_in_high_precision",
        "core/modules/attention/dot_product_attention.cpp",
        "if (has_fp8_backward()) return attend_in_fp8(",
        "if (true) return attend_in_fp8(",
    ),
    Statement(
        "`qkv_layer` and `kv_layer` hold query, key and value in one tensor.",
        "test_packed_heads.py::test_packed_tensors_are_their_parts",
        "python/telens/pytorch/packed_heads.py",
        "enumerate(tensor.unbind(dim), start",
        "enumerate(tensor.flip(dim).unbind(dim), start",
    ),
    Statement(
        "None in the place of what is packed counts as left out.",
        "test_packed_heads.py::test_none_in_the_place_of_what_is_packed_is_nothing",
        "python/telens/pytorch/packed_heads.py",
        "given_too = by_position[number] if number < len(args) else None",
        "given_too = number < len(args) or None",
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
        "stack().empty() && updates_scales &&",
        "stack().empty() && (updates_scales || true) &&",
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
)
