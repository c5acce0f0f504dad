"""Statistics: what each name means, and how micro-batches and ranks are merged."""

from statement import Statement

DEFINITIONS = "FinishedStatistics.are_the_definitions"
OF_A_CAST = "FinishedStatistics.cast_statistics_count_all_elements"
FEATURES = "test_contract_features.py::"
BLOCKS = "test_block_statistics.py::"

STATEMENTS = (
    # ---- of the high-precision tensor
    Statement(
        "`min` and `max` are the extremes.",
        DEFINITIONS,
    ),
    Statement(
        "`mean` covers all elements.",
        DEFINITIONS,
    ),
    Statement(
        "`std` is the unbiased standard deviation.",
        DEFINITIONS,
    ),
    Statement(
        "`l1_norm` is the sum of magnitudes.",
        DEFINITIONS,
    ),
    Statement(
        "`l2_norm` is the root of the sum of squares.",
        DEFINITIONS,
    ),
    Statement(
        "`numel` counts all elements *(ours)*.",
        DEFINITIONS,
    ),
    Statement(
        "Nothing is accumulated in the tensor's own dtype *(ours: the peer's l2_norm of FP16 300s "
        "is infinite)*.",
        "test_against_peer.py::test_the_norm_of_large_fp16_is_finite",
    ),
    Statement(
        "The kernel's sums equal double-precision definitions, for any data, on every SIMD target.",
        "StatisticsOf.special_data_match_definitions_on_every_simd_target",
    ),
    Statement(
        "`nan`, `posinf`, `neginf`, `zeros` and `subnormals` are exact counts; `nonfinite` is the "
        "sum of the first three *(ours)*.",
        "FinishedStatistics.hide_no_nan",
    ),
    Statement(
        "The counters are recorded with any statistic of the tensor, but loggers receive only "
        "requested statistics *(ours)*.",
        "SessionTest.counters_are_recorded_but_only_requested_ones_are_logged",
    ),
    Statement(
        "`saturated` is recorded with any statistic of a cast *(ours)*.",
        FEATURES + "test_counters_of_a_cast_come_with_any_of_its_statistics",
    ),
    Statement(
        "`cur_amax` is the largest magnitude.",
        DEFINITIONS,
    ),
    Statement(
        "`dynamic_range` is log2(amax) - log2(smallest nonzero magnitude).",
        "FinishedStatistics.zeros_and_single_elements_have_defined_values",
    ),
    Statement(
        "`dynamic_range` is 0 for an all-zero tensor *(ours: the peer returns infinity)*.",
        "FinishedStatistics.zeros_and_single_elements_have_defined_values",
    ),
    Statement(
        "`max_blockwise_dynamic_range: {block_size: 32, dims: 1}` (the defaults) is a mapping; "
        "`dims` is 1 or 2.",
        "LogTensorStatsOptions.a_blockwise_range_is_a_mapping_with_defaults",
    ),
    Statement(
        "`max_blockwise_dynamic_range` is the largest of the blocks' ranges; blocks end at row "
        "ends.",
        "BlockwiseDynamicRange.matches_definition_for_every_shape_and_simd_target",
    ),
    Statement(
        "`max_blockwise_dynamic_range` is logged as "
        "`max_blockwise_dynamic_range_block_size_32_dims_1`, for activation and weight over both "
        "orientations with the suffix `_max_over_orientations`.",
        FEATURES + "test_a_blockwise_range_is_logged_for_its_blocks_and_orientations",
    ),
    # ---- of a cast
    Statement(
        "`underflows%` is 100 x (nonzero before - nonzero after) / numel.",
        OF_A_CAST,
    ),
    Statement(
        "`overflows%` is 100 x elements beyond the largest value / numel, for all per-tensor "
        "recipes *(ours: the peer has it for delayed scaling only)*.",
        FEATURES + "test_overflows_count_values_above_a_stale_scale",
    ),
    Statement(
        "`scale_inv_min` and `scale_inv_max` are over the scales in use.",
        OF_A_CAST,
    ),
    Statement(
        "`mse` is mean((dequantized - x)^2).",
        OF_A_CAST,
    ),
    Statement(
        "A recipe before a statistic selects the effect that this recipe would have.",
        FEATURES + "test_recipe_prefix_selects_whatif_statistics",
    ),
    Statement(
        "A statistic with a recipe's name uses the running recipe's FP8 dtype for that tensor, "
        "otherwise E4M3.",
        "RequestSet.measures_each_cast_once",
    ),
    Statement(
        "`fp8_delayed_scaling_...` can be requested only while that recipe runs.",
        FEATURES + "test_delayed_scaling_can_be_asked_about_only_while_it_runs",
    ),
    Statement(
        "`_columnwise` is a valid suffix for a block recipe's name.",
        "StatisticName.accepts_a_recipe_prefix_and_a_columnwise_suffix",
    ),
    Statement(
        "The prefixes `mxfp8_` and `fp8_block_scaling_` are valid too, under any running "
        "recipe: that recipe's deterministic quantizer is used *(ours: the peer needs a "
        "Blackwell GPU)*.",
        BLOCKS + "test_block_whatif_uses_the_running_fp8_format",
    ),
    Statement(
        "If NVFP4 runs, FP8 statistics use E4M3.",
        BLOCKS + "test_nvfp4_running_is_asked_about_fp8_in_e4m3",
    ),
    Statement(
        "With `_columnwise` the values of the columnwise copy are measured *(ours: the peer "
        "measures the rowwise copy)*.",
        BLOCKS + "test_step_records_running_and_whatif_statistics",
    ),
    Statement(
        "If that copy does not have separate scales, or does not run, the statistic is omitted "
        "with the reason *(ours)*.",
        BLOCKS + "test_meaningless_statistics_are_skipped_with_a_reason",
    ),
    Statement(
        "Statistics of blocks match their definition, for every format, orientation, shape and "
        "dtype, on every SIMD target.",
        "BlockCastStatistics.match_the_definition_for_every_format_and_simd_target",
    ),
    Statement(
        "Special values, subnormals and blocks of zeros have the statistics of a reference in "
        "NumPy and ml_dtypes.",
        BLOCKS + "test_special_values_have_the_statistics_of_the_reference",
    ),
    Statement(
        "`scale_inv_min` and `scale_inv_max` of blocks are decoded values *(ours: the peer logs "
        "MXFP8's raw exponent byte)*.",
        BLOCKS + "test_block_stored_weights_reject_original_statistics",
    ),
    Statement(
        "Parts of a tensor cast in blocks merge to the whole, for any means, and a NaN in one "
        "part is kept.",
        "BlockCastStatistics.merged_parts_equal_the_whole",
    ),
    # ---- parts
    Statement(
        "Micro-batches between two `step()`s accumulate.",
        "SessionTest.micro_batches_accumulate_but_of_a_weight_the_first_counts",
    ),
    Statement(
        "An evaluation between two `step()`s is skipped, or with the section's `mode: both` "
        "recorded under separate names *(ours: the peer merges it into the training's "
        "statistics)*.",
        "test_evaluation_mode.py::test_evaluation_keeps_training_statistics",
    ),
    Statement(
        "For a weight the first micro-batch counts.",
        "SessionTest.micro_batches_accumulate_but_of_a_weight_the_first_counts",
    ),
    Statement(
        "Empty tensors count for nothing.",
        "SessionTest.empty_tensors_count_for_nothing",
    ),
    Statement(
        "The merged standard deviation is right for shifted means *(ours: the peer's is NaN)*.",
        "FinishedStatistics.merged_shifted_parts_have_the_total_deviation",
    ),
    # ---- ranks
    Statement(
        "Weights reduce over the tensor-parallel group if it has more than one rank, else they "
        "stay their rank's own.",
        "test_distributed.py::test_weight_statistics_cover_every_shard_if_enabled",
    ),
    Statement(
        "Other tensors reduce over the reduction group, by default the whole world; each rank "
        "writes the reduced value.",
        "test_distributed.py::test_statistics_are_reduced_over_the_ranks_into_one_run",
    ),
    Statement(
        "A NaN on one rank reaches all ranks.",
        "RankExchange.a_nan_on_one_rank_reaches_all",
    ),
    # ---- special values
    Statement(
        "A NaN makes min, max and mean NaN.",
        "FinishedStatistics.hide_no_nan",
    ),
    Statement(
        "A NaN is kept in any order of the merged parts.",
        "MergedStatisticsOf.parts_cut_anywhere_merge_to_the_whole_in_any_order",
    ),
    Statement(
        "Statistics of divided layers describe the whole tensor: a tensor that each rank of "
        "`tp_group` has completely counts once *(ours)*.",
        "test_parallel_statistics.py::test_parallel_layer_statistics_match_whole_tensors",
    ),
)
