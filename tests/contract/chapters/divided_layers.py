"""Layers, heads and sequences that are divided among ranks as in Transformer Engine."""

from statement import Statement

PARALLEL = "test_tensor_parallel.py::"
CONTEXT = "test_context_parallel.py::"
DIVIDED = PARALLEL + "test_shards_of_a_linear_layer_are_the_whole_layer_on_2_ranks"
ONE_BY_ONE = PARALLEL + "test_divided_layers_codes_scales_and_errors"
BEHIND_NORMS = (
    "test_tensor_parallel_norms.py::test_shards_of_layers_after_a_norm_match_whole_layers"
)
OVERLAPS = "test_userbuffers.py::"
SHARDED = "test_fsdp_of_codes.py::test_sharded_codes_train_as_whole_ones_do"

STATEMENTS = (
    Statement(
        "`parallel_mode` and `sequence_parallel` divide Linear over the ranks of `tp_group`: "
        "under every recipe output and gradients equal the whole layer's, quantized with the "
        "scales of each rank's part of the weight.",
        DIVIDED,
    ),
    Statement(
        "A row layer adds its bias to the sum over ranks, and its bias's gradient covers this "
        "rank's rows.",
        DIVIDED,
    ),
    Statement(
        "Under sequence parallelism codes and scales are gathered, not values, unless a scale "
        "block spans two ranks.",
        ONE_BY_ONE,
    ),
    Statement(
        "Current scaling and NVFP4 compute the scale of a gathered tensor from the largest amax "
        "over ranks.",
        ONE_BY_ONE,
    ),
    Statement(
        "Delayed scaling without an amax reduction over those ranks is refused there *(ours)*.",
        ONE_BY_ONE,
    ),
    Statement(
        "Parameters have `tensor_model_parallel`, `partition_dim`, `partition_stride` and "
        "`sequence_parallel` as Megatron-LM reads them.",
        ONE_BY_ONE,
    ),
    Statement(
        "LayerNormMLP's `set_parallel_mode` divides fc1 by column and fc2 by row; "
        "`return_layernorm_output_gathered` returns the norm of every rank's rows.",
        BEHIND_NORMS,
    ),
    Statement(
        "`set_parallel_mode` divides the heads of MultiheadAttention and both blocks of "
        "TransformerLayer: outputs and gradients equal the whole layer's, quantized likewise.",
        "test_parallel_transformer.py::test_divided_transformer_layers_match_whole_ones_on_2_ranks",
    ),
    Statement(
        "`symmetric_ar_type` takes multimem_all_reduce, two_shot and one_shot, and refuses any "
        "other name; on CPUs the sum is the all-reduce *(ours)*.",
        ONE_BY_ONE,
    ),
    Statement(
        "`checkpoint(distribute_saved_activations=True)` keeps this rank's part of the first "
        "tensor, one of as many as `tp_group` has, with the bits of a plain checkpoint, reentrant "
        "or not *(ours: the latter)*.",
        "test_divided_checkpoint.py::test_divided_checkpoint_matches_plain_bits",
    ),
    Statement(
        "`checkpoint` refuses to divide a tensor that ranks of `tp_group` do not have alike "
        "*(ours)*.",
        "test_divided_checkpoint.py::test_divided_checkpoint_matches_plain_bits",
    ),
    Statement(
        "After `initialize_ub` layers with `ub_*` arguments split their GEMMs into parts, and "
        "rows of some parts are sent during the products of others; results are unchanged, bit "
        "for bit if sums are exact.",
        OVERLAPS + "test_messages_products_refusals_and_whole_layers_on_2_ranks",
    ),
    Statement(
        "`ring_exchange` passes each rank's rows round, or sums of a rank's rows that each adds "
        "its own to.",
        OVERLAPS + "test_overlapped_layers_are_the_plain_ones_on_4_ranks",
    ),
    Statement(
        "`pipeline` reduce-scatters `num_splits` parts of each rank's rows.",
        OVERLAPS + "test_overlapped_layers_are_the_plain_ones_on_2_ranks",
    ),
    Statement(
        "A rank that watches a GEMM runs it whole and sends the same messages; PrecisionLedger has "
        "the method, the parts and the bytes *(ours)*.",
        "test_userbuffers_watched.py::test_observed_gemm_runs_whole_with_same_bits",
    ),
    Statement(
        "`ub_cfgs` has Transformer Engine's names of GEMMs, settings and defaults; invalid "
        "settings are rejected *(ours)*.",
        "test_userbuffer_settings.py::test_settings_have_peer_defaults_and_reject_wrong_values",
    ),
    Statement(
        "FSDP2 shards and gathers weights that `fp8_model_init` stores under one scale as codes; "
        "they train as whole ones do.",
        SHARDED,
    ),
    Statement(
        "FSDP2 also shards weights in blocks as codes if each rank has whole blocks in both "
        "orientations; other weights are sharded as values.",
        SHARDED,
    ),
    Statement(
        "A shard in blocks that is copied, or whose codes a parameter takes over, stays a shard.",
        SHARDED,
    ),
    Statement(
        "DCP writes and reads codes and scales of such weights bit for bit, between shards and "
        "whole weights.",
        SHARDED,
    ),
    Statement(
        "DCP reads values in pieces into a whole weight in FP8: codes and scales equal a cast "
        "of all values.",
        SHARDED,
    ),
    Statement(
        "Under FSDP2's `MixedPrecisionPolicy` gathered FP8 weights have its `param_dtype`.",
        SHARDED,
    ),
    Statement(
        "The ranks of `cp_group` share each sequence in DotProductAttention, by `cp_comm_type` "
        "p2p, all_gather, a2a or a2a+p2p, in sbhd, bshd and thd: output and gradients equal the "
        "whole attention's.",
        CONTEXT + "test_attention_shared_by_2_ranks_is_the_whole_one",
    ),
    Statement(
        "With context parallelism a query that sees no key yields 0 and no NaN, in gradients too.",
        CONTEXT + "test_attention_shared_by_2_ranks_is_the_whole_one",
    ),
    Statement(
        "`cp_group=[a2a's, p2p's]` exchanges heads within the first and keys across the second; "
        "the ranks of the first are neighbors.",
        "test_context_parallel_layers.py::"
        "test_layers_shared_by_4_ranks_in_two_levels_are_the_whole_ones",
    ),
    Statement(
        "`set_context_parallel_group` of MultiheadAttention and TransformerLayer reaches the "
        "attention inside, and rotates by the angles of the rank's own positions.",
        "test_context_parallel_layers.py::test_layers_shared_by_2_ranks_are_the_whole_ones",
    ),
    Statement(
        "`get_batch_on_this_cp_rank`, `pad_thd_sequences_for_cp` and "
        "`generate_positional_ids_for_cp` divide a batch as Transformer Engine does.",
        "test_context_parallel_layers.py::test_packed_batch_is_divided_like_transformer_engine",
    ),
)
