"""Attention: kernels, blocks, FP8 and score functions, with Transformer Engine's names."""

from statement import Statement

DPA = "test_fp8_attention.py::"
OF_BLOCKS = "test_block_attention.py::"
MHA = "test_fp8_mha.py::"
BLOCKS = "test_blocked_attention.py::"
RECIPE = "test_attention_recipe.py::"
CHANGES = "test_score_mod.py::"

STATEMENTS = (
    Statement(
        "`NVTE_FLASH_ATTN`, `NVTE_FUSED_ATTN` and `NVTE_UNFUSED_ATTN` disable attention kernels "
        "during the call *(ours: through torch's switches, on all threads)*.",
        "test_attention_switches.py::test_math_matches_flash_and_torchs_switches_are_restored",
    ),
    Statement(
        "If they disable every kernel, the error names them *(ours)*.",
        "test_attention_switches.py::test_unsupported_heads_error_names_a_general_kernel",
    ),
    Statement(
        "PrecisionLedger *(ours)* names the kernel that an attention ran with, and the reason "
        "against a faster one.",
        "test_attention_ledger.py::test_kernel_and_reason_against_flash_are_recorded",
    ),
    Statement(
        "`fp8_dpa` casts query, key and value, softmax and output of DotProductAttention, and the "
        "gradients of output, scores and inputs.",
        DPA + "test_current_scaling_is_the_formulas_forward_and_backward",
    ),
    Statement(
        "Under delayed scaling attention has separate scales and histories, in Transformer "
        "Engine's slots.",
        DPA + "test_delayed_scaling_takes_each_scale_from_the_amaxes_before",
    ),
    Statement(
        "The scales and histories of attention are saved in `_extra_state`.",
        DPA + "test_state_dict_contains_the_state_if_there_is_one",
    ),
    Statement(
        "FP8 attention takes biases, a learnable softmax and padding *(ours)*.",
        DPA + "test_bias_sink_and_padding_apply_to_scores",
    ),
    Statement(
        "A checkpoint around FP8 attention changes no bit, with dropout too.",
        DPA + "test_a_recomputed_attention_has_the_bits_of_a_kept_one",
    ),
    Statement(
        "Float8BlockScaling and NVFP4BlockScaling refuse `fp8_dpa` and `fp8_mha` by name *(ours)*.",
        DPA + "test_recipes_that_no_attention_casts_by_refuse_it",
    ),
    Statement(
        "`MXFP8BlockScaling(fp8_dpa=True)` casts query, key, value and the output's gradient "
        "for each product of attention in blocks along its summed dimension.",
        OF_BLOCKS + "test_products_use_blocks_along_the_summed_dimension",
    ),
    Statement(
        "The backward of attention under MXFP8BlockScaling sums the products of output and "
        "gradient without quantizing them.",
        OF_BLOCKS + "test_products_use_blocks_along_the_summed_dimension",
    ),
    Statement(
        "MXFP8BlockScaling refuses `fp8_mha` by name, also if NVTE_DPA_FP8_RECIPE chooses this "
        "recipe.",
        OF_BLOCKS + "test_no_projection_takes_its_blocks_over",
    ),
    Statement(
        "PrecisionLedger *(ours)* reports that the codes of attention are in blocks.",
        OF_BLOCKS + "test_the_ledger_says_the_scaling",
    ),
    Statement(
        "`NVTE_DPA_FP8CS_O_in_F16=0` has the backward of attention in current scaling sum up the "
        "output's codes.",
        DPA + "test_a_variable_has_the_backward_sum_up_the_outputs_codes",
    ),
    Statement(
        "With `fp8_mha` the projection after attention multiplies the codes of its output.",
        MHA + "test_proj_multiplies_the_codes_of_the_attentions_output",
    ),
    Statement(
        "With `fp8_mha` the projections before attention multiply the codes of its inputs' "
        "gradients.",
        MHA + "test_casts_between_attention_and_projections_keep_no_history",
    ),
    Statement(
        "After a rotary embedding or a norm of queries and keys, the projections cast separately.",
        MHA + "test_operation_in_between_makes_projection_cast_its_gradient",
    ),
    Statement(
        "PrecisionLedger *(ours)* says that an attention ran in FP8.",
        MHA + "test_watched_tensors_change_no_bit_and_the_ledger_says_fp8",
    ),
    Statement(
        "On a CPU no attention has a matrix of more than 2,048 x 2,048 scores in memory, whatever "
        "its mask, bias, softmax or dropout *(ours)*.",
        BLOCKS + "test_full_score_matrix_is_never_allocated",
    ),
    Statement(
        "On a CPU FP8 attention has no such matrix in memory either.",
        BLOCKS + "test_full_score_matrix_is_never_allocated",
    ),
    Statement(
        "Attention in blocks drops the same weights whatever their size *(ours)*.",
        BLOCKS + "test_dropout_is_the_same_in_blocks_of_any_size",
    ),
    Statement(
        "A mask that is changed in place between the forward in blocks and its backward is an "
        "error *(ours)*.",
        BLOCKS + "test_a_mask_that_was_changed_before_the_backward_is_an_error",
    ),
    Statement(
        "A mask of type arbitrary that does not broadcast to the scores is an error *(ours)*.",
        BLOCKS + "test_a_mask_that_does_not_broadcast_is_an_error",
    ),
    Statement(
        "`score_mod(graph, score, tensors)` changes scores, on every device, by the operations of "
        "cuDNN's graph or by torch's *(ours: Transformer Engine needs cuDNN's frontend)*.",
        CHANGES + "test_it_is_the_formula_in_blocks_of_any_size",
    ),
    Statement(
        "`score_mod_bprop` takes the place of autograd.",
        CHANGES + "test_a_gradient_that_is_given_is_used",
    ),
    Statement(
        "Options that Transformer Engine does not support with `score_mod` are rejected.",
        CHANGES + "test_incompatible_options_are_rejected",
    ),
    Statement(
        "Threads that run a MultiheadAttention under `fp8_mha` at the same time use separate "
        "scales *(ours)*.",
        MHA + "test_threads_hand_each_its_own_scales",
    ),
    Statement(
        "`NVTE_DPA_FP8_RECIPE` and its options choose another recipe for attention than the "
        "autocast's.",
        RECIPE + "test_attention_has_the_bits_of_the_recipe_that_the_variable_names",
    ),
    Statement(
        "With `NVTE_DPA_FP8_RECIPE` Float8BlockScaling and NVFP4BlockScaling accept `fp8_dpa`.",
        RECIPE + "test_a_recipe_of_block_scales_may_have_another_for_attention",
    ),
    Statement(
        "`NVTE_FP8_DPA_BWD=0` leaves the backward of FP8 attention to high precision.",
        RECIPE + "test_a_backward_may_be_in_high_precision",
    ),
    Statement(
        "`qkv_layer` and `kv_layer` hold query, key and value in one tensor.",
        "test_packed_heads.py::test_packed_tensors_are_their_parts",
    ),
    Statement(
        "None instead of a packed tensor counts as omitted.",
        "test_packed_heads.py::test_none_for_a_packed_argument_is_ignored",
    ),
)
