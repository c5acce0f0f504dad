"""telens.paddle: the effect of each argument of a layer on its parts."""

from statement import Statement

HANDED_ON = "test_paddle_handed_on.py::"
REFUSALS = "test_paddle_refusals.py::"
PARALLEL = "test_paddle_parallel.py::"
DIVIDED = PARALLEL + "test_layers_divided_between_two_ranks_are_the_whole_layers"

STATEMENTS = (
    Statement(
        "Forwards have the names and defaults of Transformer Engine's page for Paddle, too.",
        "test_paddle_signatures.py::test_forwards_have_the_names_and_defaults_of_transformer_engine",
    ),
    # ---- parameters
    Statement(
        "`weight_attr` and `bias_attr` apply to every GEMM of `MultiHeadAttention` and "
        "`TransformerLayer`; `bias_attr=False` omits every bias.",
        HANDED_ON + "test_every_gemm_has_the_attributes",
    ),
    Statement(
        "A bias follows its `paddle.ParamAttr`.",
        "test_paddle_parameters.py::test_bias_follows_its_attribute",
    ),
    Statement(
        "`LayerNorm` takes `weight_attr` and `bias_attr`.",
        HANDED_ON + "test_a_norm_has_the_attributes",
    ),
    Statement(
        "`LayerNorm(sequence_parallel=True)` marks its parameters for fleet's hooks.",
        HANDED_ON + "test_a_norm_marks_its_parameters_for_sequence_parallelism",
    ),
    Statement(
        "BF16 parameters train with FP32 master weights: amp level O2 and "
        "`AdamW(multi_precision=True)`.",
        "test_paddle_master_weights.py::test_master_weights_keep_updates_that_bf16_loses",
    ),
    Statement(
        "A checkpoint contains the FP32 master weights.",
        "test_paddle_master_weights.py::test_a_checkpoint_carries_master_weights",
    ),
    Statement(
        "The FP8 state of a layer with other GEMMs, or a damaged one, is refused and changes "
        "nothing *(ours)*.",
        REFUSALS + "test_the_state_of_another_layer_is_refused_and_changes_nothing",
    ),
    Statement(
        "An FP8 state with a history of another length is taken over, and follows the recipe.",
        REFUSALS + "test_history_of_another_length_is_adapted_to_the_recipe",
    ),
    # ---- norms and activations
    Statement(
        "`normalization` accepts 'LayerNorm' and 'RMSNorm', the latter without a bias.",
        "test_paddle_layers.py::test_a_layer_has_the_bits_of_telens_pytorch",
    ),
    Statement(
        "`eps` and `layernorm_epsilon` are added to the variance.",
        HANDED_ON + "test_epsilon_is_added_to_the_variance",
    ),
    Statement(
        "`zero_centered_gamma` holds for the norms of `LayerNormLinear`, `LayerNormMLP`, "
        "`MultiHeadAttention` and `TransformerLayer`.",
        HANDED_ON + "test_zero_centered_gamma_holds_for_every_norm",
    ),
    Statement(
        "`return_layernorm_output` of `LayerNormLinear` and `LayerNormMLP` returns the normalized "
        "input, too.",
        "test_paddle_layers.py::test_a_layer_has_the_bits_of_telens_pytorch",
    ),
    Statement(
        "`output_layernorm` normalizes the output of a `TransformerLayer`.",
        HANDED_ON + "test_final_norm_normalizes_the_output",
    ),
    # ---- micro-batches
    Statement(
        "`is_first_microbatch` holds for every GEMM of a layer.",
        HANDED_ON + "test_every_gemm_keeps_the_first_microbatchs_weight",
    ),
    Statement(
        "`fuse_wgrad_accumulation` holds for every GEMM of a layer.",
        HANDED_ON + "test_every_wgrad_is_added_to_main_grad",
    ),
    Statement(
        "A layer may run several times in one FP8 region, with `reduce_amax` too *(ours)*.",
        HANDED_ON + "test_a_layer_may_run_twice_in_one_region",
    ),
    # ---- attention
    Statement(
        "`attn_mask_type` and `self_attn_mask_type` select the mask of attention.",
        HANDED_ON + "test_the_mask_type_reaches_attention",
    ),
    Statement(
        "`attention_dropout` of a `TransformerLayer` applies to its attention.",
        HANDED_ON + "test_the_rate_of_attentions_dropout_reaches_it",
    ),
    Statement(
        "`set_zero` changes nothing: outputs that no key reaches are zeros either way.",
        "test_paddle_attention.py::test_set_zero_changes_nothing",
    ),
    Statement(
        "A `core_attention_bias` with 'no_bias' is rejected, not dropped *(ours)*.",
        REFUSALS + "test_bias_with_bias_attr_false_is_rejected",
    ),
    Statement(
        "`rotary_pos_emb` of a `TransformerLayer` applies to its self attention.",
        HANDED_ON + "test_rotary_embedding_reaches_attention",
    ),
    Statement(
        "`recompute_core_attention` of a `TransformerLayer` recomputes attention.",
        HANDED_ON + "test_recomputing_core_attention_is_asked_for_and_changes_no_bit",
    ),
    Statement(
        "`backend` of a `TransformerLayer` applies to all its layers.",
        "test_paddle_attention.py::test_a_decoder_attends_to_the_encoder",
    ),
    # ---- groups
    Statement(
        "`tp_group` is a group of paddle.distributed, or whatever has its `nranks` and `rank`.",
        PARALLEL + "test_a_group_that_is_given_decides_the_part",
    ),
    Statement(
        "`tp_group` of `DotProductAttention` divides the heads.",
        PARALLEL + "test_a_group_divides_the_heads_of_attention",
    ),
    Statement(
        "`fp8_group` reduces amaxes.",
        DIVIDED,
    ),
    Statement(
        "`rng_state_name` and the `..._rng_state_name`s name the states of fleet's tracker from "
        "which dropout is drawn if ranks are parallel.",
        DIVIDED,
    ),
    Statement(
        "With `sequence_parallel` the ranks draw different dropout for hidden states.",
        PARALLEL + "test_sequence_parallel_ranks_draw_separate_dropout",
    ),
    # ---- what is no argument
    Statement(
        "Arguments that must be a `paddle.Tensor` or a group reject other values by name *(ours)*.",
        REFUSALS + "test_non_paddle_tensor_is_rejected",
    ),
    Statement(
        "A size that is not an integer from 1 on is rejected by name *(ours)*.",
        "test_paddle_options.py::test_sizes_are_integers_from_1_on",
    ),
    Statement(
        "A `weight_attr` of False is refused: a weight there is *(ours)*.",
        "test_paddle_options.py::test_attributes_of_parameters_are_those_that_paddle_takes",
    ),
    Statement(
        "Heads of another shape are refused with the layout that there is *(ours)*.",
        REFUSALS + "test_error_for_wrong_heads_shows_the_layout",
    ),
)
