"""Functions and arguments of Transformer Engine's modules on one device."""

from statement import Statement

CROSS_ENTROPY = "test_cross_entropy.py::"
DELAYED = "test_delayed_wgrads.py::"
REQUESTED = "test_delayed_scaling_requests.py::"
ROTARY = "test_rotary_embedding.py::"
MLP = "test_mlp_arguments.py::"
CARRIED = "test_carried_codes.py::"
PARAMETERS = "test_grouped_parameters.py::"

STATEMENTS = (
    Statement(
        "A third argument of `Linear` by position is `bias`, as in torch *(ours)*.",
        "test_neutral_arguments.py::test_third_argument_of_linear_is_the_bias_of_torch",
    ),
    Statement(
        "In scripts under `telens.run_as_te` a bool in this place is an error that names both "
        "meanings *(ours)*.",
        "test_run_as_te.py::test_bool_as_third_argument_of_linear_names_both_meanings",
    ),
    Statement(
        "`parallel_cross_entropy` gives losses and gradients of torch's cross entropy, with "
        "`label_smoothing`, `reduce_loss` and `ignore_idx`, and does not change the logits "
        "*(ours)*.",
        CROSS_ENTROPY + "test_losses_and_gradients_match_torch",
    ),
    Statement(
        "With `dist_process_group` each rank has a part of the vocabulary.",
        CROSS_ENTROPY + "test_a_divided_vocabulary_gives_the_loss_of_the_whole",
    ),
    Statement(
        "A target that is ignored gives no gradient, also if its logits are NaN *(ours)*.",
        CROSS_ENTROPY + "test_ignored_rows_have_no_loss_and_no_gradient_whatever_they_hold",
    ),
    Statement(
        "An input or a gradient that is changed in place while it waits for `backward_dw` is an "
        "error *(ours)*.",
        "test_delayed_wgrads.py::test_changed_operands_of_pending_gradients_are_reported",
    ),
    Statement(
        "A gradient that waits for `backward_dw` becomes no leaf's `.grad`.",
        "test_delayed_wgrads.py::test_the_gradient_that_waits_becomes_no_leafs_own",
    ),
    Statement(
        "On a CPU without BF16 instructions, products of BF16 operands and BF16 attention are "
        "computed in FP32 and rounded once. torch's own BF16 products may differ there in the "
        "last bit *(ours)*.",
        "test_products_without_bf16.py::test_bf16_products_are_rounded_once_from_fp32",
    ),
    Statement(
        "With `delay_wgrad_compute` the backward leaves weights' gradients to `backward_dw`, with "
        "the same bits, under every recipe.",
        DELAYED + "test_gradients_have_the_bits_of_those_that_the_backward_makes",
    ),
    Statement(
        "Each `backward_dw` computes the gradients of the oldest backward.",
        DELAYED + "test_each_call_computes_gradients_of_the_oldest_backward",
    ),
    Statement(
        "Gradients that wait keep no module in memory *(ours)*.",
        DELAYED + "test_pending_gradients_do_not_keep_layers_alive",
    ),
    Statement(
        "Rotary embeddings turn halves or, interleaved, neighbors of channels.",
        ROTARY + "test_channels_are_rotated_in_pairs",
    ),
    Statement(
        "`apply_rotary_pos_emb` takes `start_positions`.",
        ROTARY + "test_channels_are_rotated_in_pairs",
    ),
    Statement(
        "Packed sequences (thd) take `rotary_pos_emb`: each token by its place in its sequence, "
        "with and without gaps between them.",
        ROTARY + "test_a_layer_of_packed_sequences_rotates_each_from_its_start",
    ),
    Statement(
        "`activation` may be glu or clamped_swiglu, with `activation_params`.",
        MLP + "test_composed_activations_are_their_formulas",
    ),
    Statement(
        "`LayerNormMLP(checkpoint=True)` recomputes inside, with the same bits, copies of it too.",
        MLP + "test_a_checkpointed_mlp_keeps_less_and_has_the_same_bits",
    ),
    Statement(
        "`parameters_split` refuses parts without rows.",
        "test_mlp_arguments.py::test_parts_given_by_name_only_are_equal",
    ),
    Statement(
        "`parameters_split` accepts only names, for equal parts.",
        MLP + "test_parts_given_by_name_only_are_equal",
    ),
    Statement(
        "A recipe's `backward_override` may be 'high_precision'.",
        "test_backward_override.py::test_high_precision_backward_equals_overriding_both_gemms",
    ),
    Statement(
        "A recipe's `backward_override` may be 'dequantized': dgrad and wgrad multiply the values "
        "of fprop's codes.",
        "test_backward_override.py::test_dequantized_backward_uses_fprops_operands",
    ),
    Statement(
        "A weight cached by a micro-batch without gradients serves no dequantized backward.",
        "test_backward_override.py::test_dequantized_backward_ignores_an_unsuitable_cache",
    ),
    Statement(
        "A weight kept under one backward_override serves no forward under another.",
        "test_backward_override.py::test_a_kept_weight_serves_no_recipe_of_another_override",
    ),
    Statement(
        "Arguments have Transformer Engine's positions as far as the orders agree; later ones are "
        "keyword-only *(ours)*.",
        "test_neutral_arguments.py::test_later_arguments_are_keyword_only",
    ),
    Statement(
        "A fourth argument of LayerNormLinear, LayerNormMLP or GroupedLinear that is a bool is an "
        "error that names bias and sequence_parallel *(ours)*.",
        "test_neutral_arguments.py::test_a_bool_by_position_names_both_meanings",
    ),
    Statement(
        "A bool is refused as a size or a factor *(ours)*.",
        "test_neutral_arguments.py::test_a_bool_is_not_a_size",
    ),
    Statement(
        "`parameters_split` strips trailing underscores from names of parts.",
        "test_neutral_arguments.py::test_parts_lose_trailing_underscores",
    ),
    Statement(
        "A module has `use_bias`; its `bias` is a parameter, None or absent.",
        "test_module_state.py::test_bias_is_a_tensor_and_use_bias_the_option",
    ),
    Statement(
        "`reset_parameters` fills parameters in place like the constructor, and allocates meta "
        "parameters on the default device.",
        "test_initialization.py::test_reset_matches_the_constructor",
    ),
    Statement(
        "After `fully_shard`, `reset_parameters` gives each rank its shard of a common "
        "initialization.",
        "test_initialization.py::test_fsdp2_shards_come_from_a_common_initialization",
    ),
    Statement(
        "`prepare_te_modules_for_fsdp` changes no value.",
        "test_initialization.py::test_prepare_te_modules_for_fsdp_changes_no_value",
    ),
    Statement(
        "`te.checkpoint`, reentrant or not, does not change amax histories, scales and "
        "gradients, also around an autocast.",
        "test_recomputed_scales.py::test_checkpoint_keeps_scales_and_gradients",
    ),
    Statement(
        "A call of a graphed callable may add or omit keywords at their defaults *(ours)*.",
        "test_graphed_calls.py::test_keywords_at_their_defaults_may_differ_from_the_sample",
    ),
    Statement(
        "An input that a graphed module changes in place is changed for its caller.",
        "test_graphed_calls.py::test_an_input_changed_in_place_is_changed_for_the_caller",
    ),
    Statement(
        "A CustomRecipe's factory can distinguish the GEMMs of a GroupedLinear.",
        "test_custom_recipe.py::test_custom_recipe_distinguishes_grouped_gemms",
    ),
    Statement(
        "A CustomRecipe whose factory returns a DelayedScalingRequest for each tensor trains as "
        "DelayedScaling does, histories and checkpoints too.",
        REQUESTED + "test_requests_for_all_tensors_equal_delayed_scaling",
    ),
    Statement(
        "Tensors for which a CustomRecipe's factory returns quantizers keep these.",
        REQUESTED + "test_other_tensors_keep_their_own_quantizers",
    ),
    Statement(
        "Different requests for a layer are an error that names them, and the layer keeps its "
        "state.",
        REQUESTED + "test_requests_that_differ_are_errors_by_name",
    ),
    Statement(
        "`fp8_grad` of LayerNormLinear rounds the gradient before the norm's backward.",
        "test_fp8_outputs.py::test_gradient_is_rounded_before_the_norms_backward",
    ),
    Statement(
        "The next layer takes the codes of an output in FP8 (`fp8_output`) without a cast.",
        CARRIED + "test_the_next_layer_takes_the_codes_of_an_output_without_a_cast",
    ),
    Statement(
        "`fp8_output` of DotProductAttention in FP8 passes on the codes that its quantizer "
        "gives for its output, in every layout.",
        "test_handed_attention.py::test_codes_match_the_plain_output",
    ),
    Statement(
        "A recipe that does not cast attention's output refuses it by name *(ours)*.",
        "test_handed_attention.py::test_a_recipe_that_does_not_cast_the_output_is_refused_by_name",
    ),
    Statement(
        "The layer before takes the codes of a gradient in FP8 (`fp8_grad`) without a cast.",
        CARRIED + "test_previous_layer_reuses_gradient_codes",
    ),
    Statement(
        "A gradient in FP8 that was changed in place is cast again.",
        CARRIED + "test_gradient_changed_by_a_hook_is_cast_again",
    ),
    Statement(
        "The products of a GroupedLinear that nothing casts or watches are one operation.",
        PARAMETERS + "test_grouped_product_matches_bits_of_separate_products",
    ),
    Statement(
        "Casts and products of an unwatched GroupedLinear are one autograd function, with the "
        "bits of separate maps *(ours)*.",
        PARAMETERS + "test_grouped_cast_matches_bits_of_separate_casts",
    ),
    Statement(
        "With `_graph=True` the end of an outermost region does not update the scales of the "
        "forward.",
        "test_training.py::test_graph_region_end_keeps_forward_scales",
    ),
    Statement(
        "A region that an exception leaves updates no scale, waits for no other rank, and lets the "
        "exception through *(ours)*.",
        "test_broken_off_region.py::test_error_on_one_rank_keeps_ranks_in_step",
    ),
    Statement(
        "Checkpoints of a GroupedLinear with one weight and with many load into each other.",
        PARAMETERS + "test_joined_and_separate_checkpoints_are_interchangeable",
    ),
    Statement(
        "`out` of GroupedLinear is overwritten only if no backward needs it any more.",
        PARAMETERS + "test_results_are_written_into_buffers_of_the_callers",
    ),
    Statement(
        "`fp8_model_init` stores parts of a weight (`parameters_split`) under their own scales.",
        "test_stored_parts.py::test_stored_split_weight_matches_separate_layers",
    ),
    Statement(
        "`data` of a weight that `fp8_model_init` stores rejects values that are not tensors, "
        "other shapes, other kinds of codes, and other dtypes than BF16, FP16 and FP32 "
        "(`layer.double()`).",
        "test_stored_weights.py::test_data_that_a_stored_weight_cannot_have_is_an_error",
    ),
)
