"""telens.paddle: the names, defaults and rules of Transformer Engine's layers for PaddlePaddle."""

from statement import Statement

LAYERS = "test_paddle_layers.py::"
PARAMETERS = "test_paddle_parameters.py::"
ATTENTION = "test_paddle_attention.py::"
REGIONS = "test_paddle_regions.py::"
DEBUG = "test_paddle_debug.py::"
PARALLEL = "test_paddle_parallel.py::"
DIVIDED = PARALLEL + "test_layers_divided_between_two_ranks_are_the_whole_layers"
SAME_BITS = LAYERS + "test_a_layer_has_the_bits_of_telens_pytorch"

STATEMENTS = (
    Statement(
        "Arguments of layers, forwards and `fp8_autocast` have the names and defaults of "
        "Transformer Engine's page for Paddle.",
        "test_paddle_signatures.py::"
        "test_arguments_have_the_names_and_defaults_of_transformer_engine",
    ),
    # ---- the layers
    Statement(
        "`Linear`, `LayerNorm`, `LayerNormLinear` and `LayerNormMLP` have the bits of "
        "telens.pytorch's, forward and backward, in high precision and in FP8.",
        SAME_BITS,
    ),
    Statement(
        "`backend='paddle'` runs Paddle's own operators, which come near the core's.",
        LAYERS + "test_a_layer_is_near_paddles_own_operators",
    ),
    Statement(
        "`activation` takes 'gelu', 'geglu', 'relu', 'reglu', 'squared_relu' and 'swiglu'.",
        SAME_BITS,
    ),
    Statement(
        "`zero_centered_gamma` starts the norm's weight at 0 and means 1 + weight.",
        LAYERS + "test_zero_centered_gamma_starts_at_zero_and_means_one",
    ),
    Statement(
        "FP8 requires features that are multiples of 16; the number of tokens is arbitrary.",
        LAYERS + "test_an_fp8_layer_wants_features_that_16_divides",
    ),
    # ---- parameters
    Statement(
        "`weight_attr` is a `paddle.ParamAttr`: name, initializer, learning rate, regularizer, "
        "trainable and need_clip are honored.",
        PARAMETERS + "test_weight_follows_its_attribute",
    ),
    Statement(
        "`bias_attr=False` omits the bias of linear layers.",
        PARAMETERS + "test_bias_attr_false_omits_the_bias",
    ),
    Statement(
        "`bias_attr=False` is zeros that are not trained for `LayerNorm`.",
        PARAMETERS + "test_a_norms_bias_attr_false_is_zeros_that_are_not_trained",
    ),
    Statement(
        "Tensors pass to the core and back without a copy.",
        "test_paddle_handed_on.py::test_operators_get_the_memory_of_paddles_tensors",
    ),
    Statement(
        "A tensor with `stop_gradient` gets no gradient.",
        PARAMETERS + "test_a_frozen_weight_gets_no_gradient",
    ),
    Statement(
        "A layer may be used twice in one graph.",
        PARAMETERS + "test_a_layer_may_be_used_twice",
    ),
    Statement(
        "`fuse_wgrad_accumulation` adds the weight's gradient to `weight.main_grad`.",
        PARAMETERS + "test_wgrad_is_added_to_main_grad",
    ),
    Statement(
        "`is_first_microbatch` keeps the quantized weight for the micro-batches that follow.",
        PARAMETERS + "test_the_first_microbatchs_weight_is_kept_for_the_others",
    ),
    Statement(
        "`paddle.save`, `paddle.load` and `set_state_dict` carry amax histories and scales.",
        PARAMETERS + "test_a_checkpoint_restores_weights_optimizer_and_scales",
    ),
    Statement(
        "Copies and pickles of a layer carry its scales.",
        PARAMETERS + "test_copies_have_separate_weights_and_scales",
    ),
    Statement(
        "`paddle.amp.auto_cast` decides the dtype of the GEMMs.",
        REGIONS + "test_auto_cast_decides_the_dtype_of_the_gemms",
    ),
    # ---- softmax
    Statement(
        "`FusedScaleMaskSoftmax` scales, masks and normalizes in FP32, and returns the input's "
        "dtype.",
        ATTENTION + "test_softmax_is_scaled_masked_and_of_the_inputs_dtype",
    ),
    Statement(
        "`FusedScaleMaskSoftmax` calls its `mask_func`.",
        ATTENTION + "test_softmax_calls_the_mask_function_that_it_was_given",
    ),
    Statement(
        "`FusedScaleMaskSoftmax` accepts tensors with 4 dimensions, and a scale only with "
        "`softmax_in_fp32`.",
        ATTENTION + "test_softmax_refuses_other_shapes_and_a_scale_in_16_bits",
    ),
    # ---- attention
    Statement(
        "`DotProductAttention` attends alike in both backends, for every mask type and GQA.",
        ATTENTION + "test_both_backends_attend_alike",
    ),
    Statement(
        "`attention_mask` is ignored for causal attention.",
        ATTENTION + "test_causal_attention_ignores_the_mask",
    ),
    Statement(
        "A mask that does not broadcast to [batch, heads, seq_q, seq_kv] is refused *(ours)*.",
        ATTENTION + "test_a_mask_that_does_not_broadcast_is_refused",
    ),
    Statement(
        "Cross attention demands a mask.",
        ATTENTION + "test_cross_attention_demands_a_mask",
    ),
    Statement(
        "A `core_attention_bias_type` other than 'no_bias' is refused.",
        ATTENTION + "test_a_bias_of_scores_is_refused",
    ),
    Statement(
        "`paddle.seed` decides attention's dropout, and torch's random state does not change.",
        ATTENTION + "test_paddles_seed_decides_dropout",
    ),
    Statement(
        "`NVTE_ALLOW_NONDETERMINISTIC_ALGO=0` chooses attention's deterministic formula.",
        ATTENTION + "test_a_deterministic_algorithm_may_be_asked_for",
    ),
    Statement(
        "`MultiHeadAttention` has the bits of telens.pytorch's, with and without its norm, GQA and "
        "FP8.",
        ATTENTION + "test_multi_head_attention_has_the_bits_of_telens_pytorch",
    ),
    Statement(
        "The cross attention of `MultiHeadAttention` takes key and value from `encoder_output`.",
        ATTENTION + "test_cross_attention_matches_paddles_operators",
    ),
    Statement(
        "`rotary_pos_emb` is a tuple: cosines and sines, or angles of query and key *(ours)*.",
        ATTENTION + "test_rotary_embedding_takes_cosines_and_sines_or_angles",
    ),
    Statement(
        "`return_layernorm_output` returns the normalized input, too.",
        ATTENTION + "test_the_normalized_input_is_returned_with_the_output",
    ),
    Statement(
        "`recompute_core_attention` changes no bit, with dropout too.",
        ATTENTION + "test_recomputing_core_attention_changes_no_bit",
    ),
    # ---- the Transformer layer
    Statement(
        "`TransformerLayer` has the bits of telens.pytorch's, in FP8 too.",
        ATTENTION + "test_a_transformer_layer_has_the_bits_of_telens_pytorch",
    ),
    Statement(
        "A decoder's cross attention has the mask type 'padding'.",
        ATTENTION + "test_decoder_mask_hides_encoder_positions",
    ),
    Statement(
        "`params_dtype` decides the parameters' dtype.",
        ATTENTION + "test_parameters_have_the_dtype_that_is_asked_for",
    ),
    Statement(
        "`hidden_dropout` is drawn by Paddle, only in training.",
        ATTENTION + "test_hidden_dropout_is_drawn_by_paddle",
    ),
    # ---- regions
    Statement(
        "`fp8_autocast` is off by default.",
        REGIONS + "test_the_region_is_off_by_default",
    ),
    Statement(
        "`calibrating` collects amaxes in high precision.",
        REGIONS + "test_calibrating_collects_amaxes_in_high_precision",
    ),
    Statement(
        "A recipe with user-defined functions is rejected.",
        REGIONS + "test_a_recipe_with_a_function_of_ones_own_is_refused",
    ),
    Statement(
        "`recompute` in FP8 has the bits of a step without, and notes amaxes once.",
        REGIONS + "test_recomputation_in_fp8_has_the_bits_of_a_step_without",
    ),
    # ---- debugging
    Statement(
        "Watching changes no bit of 30 steps of a Paddle training.",
        DEBUG + "test_looking_changes_no_bit",
    ),
    Statement(
        "Every config of configs/ runs in a Paddle training.",
        DEBUG + "test_every_ready_configuration_runs",
    ),
    Statement(
        "A loss of `debug.step` may be a tensor of Paddle.",
        DEBUG + "test_a_loss_that_is_a_tensor_of_paddle_is_recorded",
    ),
    # ---- parallel layers
    Statement(
        "`parallel_mode`, `set_parallel_mode` and `sequence_parallel` divide layers over two "
        "processes, which match a single process.",
        DIVIDED,
    ),
    Statement(
        "`parallel_mode` takes 'Column' and 'Row' in capitals or without.",
        PARALLEL + "test_capitals_or_none",
    ),
    Statement(
        "Sizes that are not divisible by the ranks are rejected.",
        PARALLEL + "test_sizes_not_divisible_by_ranks_are_rejected",
    ),
    # ---- the package
    Statement(
        "`import telens`, telens.pytorch and telens.debug import no Paddle.",
        "test_paddle_import.py::test_the_rest_of_the_package_imports_no_paddle",
    ),
    Statement(
        "If Paddle is missing, or its version was not tried, the import fails with what to "
        "install.",
        "test_paddle_import.py::test_rejects_untested_versions",
    ),
)
