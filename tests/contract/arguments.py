"""Each argument of the PyTorch modules, each function and each recipe field, with the test of it.

Each test is listed once with all names that it covers. `contract.py` generates
docs/internals/contract_arguments.md from it. tests/structure/test_contract_arguments.py compares
the list with the modules' stubs.
"""

MODULES = "test_modules.py::"
GROUPED = "test_grouped_linear.py::"
NEUTRAL = "test_neutral_arguments.py::"
ATTENTION = "test_attention.py::"
DRAWN = ATTENTION + "test_random_cases_match_fp64"
PARALLEL = "test_tensor_parallel.py::"
DIVIDED = PARALLEL + "test_shards_of_a_linear_layer_are_the_whole_layer_on_2_ranks"
DIVIDED_HEADS = (
    "test_parallel_transformer.py::test_divided_transformer_layers_match_whole_ones_on_2_ranks"
)
BEHIND_NORMS = (
    "test_tensor_parallel_norms.py::test_shards_of_layers_after_a_norm_match_whole_layers"
)
OVERLAPPED = "test_userbuffers.py::test_overlapped_layers_are_the_plain_ones_on_2_ranks"
LAYER = "ATransformerLayer."
TRANSFORMER = "test_transformer_attention.py::"
CACHED = "test_inference_params.py::test_cached_steps_equal_recomputing_whole_sequences"
RECIPES = "test_recipe_arguments.py::"
SEEDS = "test_seed_arguments.py::"

# Arguments of constructors and forwards that are only accepted with the value that has no effect.
ONLY_NEUTRAL = (
    "use_grouped_tensor seq_length micro_batch_size fast_zero_fill pad_between_seqs bf16_backward"
)

# {test: arguments, of any module}
OF_ANY_MODULE = {
    "test_grouped_parameters.py::test_joined_parameter_matches_separate_parameters": (
        "single_grouped_weight single_grouped_bias"
    ),
    "test_grouped_parameters.py::test_results_are_written_into_buffers_of_the_callers": (
        "out dgrad_out"
    ),
    NEUTRAL + "test_another_value_is_refused_by_the_name_of_the_argument": ONLY_NEUTRAL,
    NEUTRAL + "test_hints_change_no_bit": ("sm_margin save_original_input num_splits"),
    MODULES + "test_linear_matches_torch_forward_and_backward": (
        "in_features out_features bias inp"
    ),
    MODULES + "test_return_bias_returns_a_pair": "return_bias",
    MODULES + "test_dtype_device_and_initialization_are_options": (
        "params_dtype device init_method output_layer_init_method"
    ),
    MODULES + "test_an_epsilon_is_finite_and_not_below_0": "eps layernorm_epsilon qk_norm_eps",
    "MainGrad.equals_grad_for_every_gemm_of_every_module": ("fuse_wgrad_accumulation"),
    "test_debug_session.py::test_layer_names_follow_the_structure_of_the_model": "name",
    "test_delayed_wgrads.py::"
    "test_gradients_have_the_bits_of_those_that_the_backward_makes": "delay_wgrad_compute",
    "test_mlp_arguments.py::test_parts_given_by_name_only_are_equal": "parameters_split",
    "test_mlp_arguments.py::test_composed_activations_are_their_formulas": "activation_params",
    "test_mlp_arguments.py::test_a_checkpointed_mlp_keeps_less_and_has_the_same_bits": "checkpoint",
    "test_moe_dispatcher.py::test_experts_are_named_by_their_number_among_all": "first_gemm",
    OVERLAPPED: (
        "ub_overlap_ag ub_overlap_rs ub_overlap_rs_dgrad ub_bulk_dgrad ub_bulk_wgrad ub_name"
    ),
    "test_userbuffers.py::"
    "test_messages_products_refusals_and_whole_layers_on_2_ranks": "ub_tp_comm_overlap",
    DIVIDED: "tp_group tp_size parallel_mode sequence_parallel",
    PARALLEL + "test_divided_layers_codes_scales_and_errors": ("symmetric_ar_type"),
    BEHIND_NORMS: "return_layernorm_output_gathered",
    DIVIDED_HEADS: "set_parallel_mode",
    "test_packed_heads.py::test_packed_tensors_are_their_parts": (
        "qkv_layer kv_layer qkv_interleave_dim"
    ),
    "test_rng_tracker.py::test_weights_are_drawn_inside_the_fork": "get_rng_state_tracker",
    "test_rng_tracker.py::test_a_layer_may_name_its_state": "rng_tracker_name",
    "test_training.py::test_first_microbatch_weights_are_reused": "is_first_microbatch",
    "test_fp8_outputs.py::"
    "test_current_scaling_rounds_an_output_to_fp8_after_the_gemm": "fp8_output",
    "test_fp8_outputs.py::test_current_scaling_rounds_the_input_gradient_to_fp8": "fp8_grad",
    GROUPED + "test_matches_separate_torch_linears": "num_gemms",
    GROUPED + "test_m_splits_may_be_a_tensor": "m_splits",
    MODULES + "test_norms_match_torch": "normalized_shape normalization",
    "NormModules.initial_factor_is_one": "zero_centered_gamma",
    LAYER + "residual_after_the_norm": (
        "apply_residual_connection_post_layernorm return_layernorm_output"
    ),
    "NormModules.layer_norm_mlp_equals_its_parts_in_fp64": "hidden_size ffn_hidden_size",
    SEEDS + "test_all_documented_activations_are_there": "activation",
    DRAWN: (
        "num_attention_heads num_gqa_groups kv_channels qkv_format attn_mask_type softmax_scale "
        "window_size bottom_right_diagonal softmax_type return_max_logit attention_mask "
        "query_layer key_layer value_layer core_attention_bias_type core_attention_bias "
        "alibi_slopes cu_seqlens_q cu_seqlens_kv cu_seqlens_q_padded cu_seqlens_kv_padded "
        "max_seqlen_q max_seqlen_kv"
    ),
    ATTENTION + "test_checkpointed_attention_repeats_dropout_and_bits": (
        "checkpoint_core_attention attention_dropout"
    ),
    CACHED: "inference_params layer_number",
    "test_score_mod.py::test_it_is_the_formula_in_blocks_of_any_size": (
        "score_mod score_mod_bprop score_mod_tensors score_mod_bprop_tensors"
    ),
    "test_context_parallel.py::test_attention_shared_by_4_ranks_is_the_whole_one": (
        "cp_group cp_global_ranks cp_comm_type"
    ),
    NEUTRAL + "test_parallelism_over_one_rank_is_none": "cp_stream",
    "Attention.cross_attention_equals_its_parts_in_fp64": (
        "attention_type encoder_output hidden_states"
    ),
    "Attention.separate_parameters_equal_their_parts_in_fp64": "input_layernorm",
    "Attention.fused_parameters_equal_their_parts_in_fp64": (
        "fuse_qkv_params qkv_weight_interleaved"
    ),
    "test_multihead_attention.py::test_query_and_key_are_normalized_head_by_head": (
        "qk_norm_type qk_norm_before_rope"
    ),
    "test_rotary_embedding.py::"
    "test_interleaved_pairs_are_halves_of_permuted_heads": "rotary_pos_interleaved",
    "test_rotary_embedding.py::"
    "test_a_layer_of_packed_sequences_rotates_each_from_its_start": "rotary_pos_emb",
    LAYER + "dropout_only_in_training_with_torch_generator": "hidden_dropout",
    LAYER + "equals_its_parts_in_fp64": (
        "output_layernorm layer_type self_attn_mask_type enc_dec_attn_mask_type enc_dec_attn_mask"
    ),
    LAYER + "parallel_attention_mlp_adds_both_to_the_input": "parallel_attention_mlp",
    LAYER + "output_is_equal_in_both_input_formats": "attn_input_format",
    TRANSFORMER + "test_a_decoder_takes_windows_biases_and_packed_sequences": (
        "enc_dec_window_size enc_dec_bottom_right_diagonal"
    ),
    TRANSFORMER
    + "test_a_path_is_dropped_for_whole_positions_and_only_in_training": "drop_path_rate",
}

# {test: functions, classes and methods of telens.pytorch}
FUNCTIONS = {
    "test_userbuffer_settings.py::test_settings_have_peer_defaults_and_reject_wrong_values": (
        "initialize_ub destroy_ub UserBufferQuantizationMode"
    ),
    "test_training.py::test_regions_nest_and_the_innermost_decides": "autocast fp8_autocast",
    "test_training.py::test_calibrating_collects_amaxes_in_high_precision": "calibrating",
    "test_distributed.py::test_amaxes_are_reduced_over_the_group": "fp8_group",
    "test_quantized_tensor.py::test_model_init_quantizes_only_gemm_weights": (
        "fp8_model_init quantized_model_init"
    ),
    "test_quantized_tensor.py::test_initial_values_are_kept_under_the_peers_names": (
        "get_high_precision_init_val clear_high_precision_init_val"
    ),
    "test_training.py::test_recomputation_changes_no_bit": "checkpoint",
    "test_rng_tracker.py::test_forks_continue_their_stream_and_keep_the_default": (
        "CudaRNGStatesTracker add fork"
    ),
    "test_rng_tracker.py::test_states_survive_get_and_set_and_an_exception": (
        "get_states set_states reset"
    ),
    "test_graphed_callables.py::test_layers_train_as_without_it": "make_graphed_callables",
    "test_cpu_offload.py::test_places_are_free_when_the_schedule_says": "get_cpu_offload_context",
    "test_permutation.py::test_rows_are_bit_equal_copies": "moe_permute moe_permute_with_probs",
    "test_permutation.py::"
    "test_unpermuting_adds_a_tokens_rows_in_fp32_and_rounds_once": "moe_unpermute",
    "test_permutation.py::test_chunks_are_sorted_as_cat_sorts_them": "moe_sort_chunks_by_index",
    "test_permutation.py::test_chunks_are_sorted_with_their_probabilities": (
        "moe_sort_chunks_by_index_with_probs"
    ),
    "test_permutation.py::test_padded_rows_are_zero_and_unpermuting_leaves_them_out": (
        "moe_permute_and_pad_with_probs"
    ),
    "test_permutation.py::"
    "test_parts_of_a_grouped_gemm_are_padded_and_unpadded": "Fp8Padding Fp8Unpadding",
    "test_cross_entropy.py::test_losses_and_gradients_match_torch": "parallel_cross_entropy",
    "test_rotary_embedding.py::test_channels_are_rotated_in_pairs": "apply_rotary_pos_emb",
    "test_multihead_attention.py::"
    "test_rotary_angles_have_the_references_percent_and_interpolation": "RotaryPositionEmbedding",
    CACHED: "InferenceParams",
    "test_tensor_parallel_group.py::"
    "test_layers_hand_the_group_that_they_were_given_to_every_call": "set_tensor_parallel_group",
    "test_delayed_wgrads.py::"
    "test_each_call_computes_gradients_of_the_oldest_backward": "backward_dw need_backward_dw",
    "test_availability.py::test_emulated_formats_are_available_with_a_reason": (
        "is_fp8_available is_mxfp8_available is_fp8_block_scaling_available is_nvfp4_available"
    ),
}

# {test: fields of the recipes}
RECIPE_FIELDS = {
    RECIPES + "test_arguments_have_transformer_engines_order": "positions",
    RECIPES + "test_interval_is_a_field_accepted_by_name": "interval",
    RECIPES + "test_largest_margin_keeps_the_largest_value": "margin",
    "test_fp8_meta.py::test_recipe_format_applies_to_both_directions": "fp8_format Format",
    "test_fp8_meta.py::test_history_length_follows_the_recipe_and_keeps_newest_rows": (
        "amax_history_len"
    ),
    "test_training.py::test_functions_of_the_user_compute_amax_and_scale": (
        "amax_compute_algo scaling_factor_compute_algo"
    ),
    "test_backward_override.py::test_high_precision_backward_equals_overriding_both_gemms": (
        "backward_override override_linear_precision"
    ),
    "test_fp8_attention.py::test_current_scaling_is_the_formulas_forward_and_backward": "fp8_dpa",
    "test_fp8_mha.py::test_proj_multiplies_the_codes_of_the_attentions_output": "fp8_mha",
    RECIPES + "test_gemm_parameters_are_taken_where_sums_in_fp32_keep_them": (
        "fp8_gemm_fprop fp8_gemm_dgrad fp8_gemm_wgrad"
    ),
    RECIPES + "test_nvfp4_is_quantized_as_the_assigned_parameters_say": (
        "disable_rht disable_stochastic_rounding disable_2d_quantization"
    ),
    "test_four_over_six.py::test_a_recipe_scales_the_tensors_of_its_scope": (
        "nvfp4_4over6 nvfp4_4over6_e4m3_use_256 nvfp4_4over6_err_mode"
    ),
    "test_row_scaled.py::test_weights_and_gradients_keep_one_scale_a_tensor": (
        "row_scaled_activation"
    ),
    "test_power_of_2_scale.py::test_power_of_2_scale_matches_the_formula": "power_of_2_scale",
    "test_custom_recipe.py::"
    "test_a_custom_recipe_is_asked_for_every_tensor_and_obeyed": "CustomRecipe",
    "test_delayed_scaling_requests.py::test_requests_for_all_tensors_equal_delayed_scaling": (
        "DelayedScalingRequest"
    ),
}


def tests_of(table: dict[str, str]) -> dict[str, str]:
    """The test of each name."""
    return {name: test for test, names in table.items() for name in names.split()}
