"""Statistics: what each name means, how parts and ranks come together."""

from statement import Statement

CATALOGUE = "features/statistics/catalogue.cpp"
ENGINE = "features/engine/one_pass_engine.cpp"
OBSERVATION = "features/engine/tensor_observation.cpp"
NAMES = "features/statistics/statistic_name.cpp"
REQUESTS = "features/statistics/requests.cpp"
DEFINITIONS = "FinishedStatistics.are_the_definitions"
OF_A_CAST = "FinishedStatistics.of_a_cast_count_all_elements"
FEATURES = "test_contract_features.py::"
BLOCKS = "test_block_statistics.py::"
BLOCK_CASTS = "core/kernels/cpu/statistics/statistics_block_casts.cpp"

STATEMENTS = (
    # ---- of the high-precision tensor
    Statement(
        "`min` and `max` are the extremes.",
        DEFINITIONS,
        CATALOGUE,
        "return sums.nan > 0 ? kNan : sums.max;",
        "return sums.nan > 0 ? kNan : sums.min;",
    ),
    Statement(
        "`mean` is that of all elements.",
        DEFINITIONS,
        CATALOGUE,
        "sums.sum / static_cast<double>(sums.numel)",
        "sums.sum / static_cast<double>(sums.numel - 1)",
    ),
    Statement(
        "`std` is the unbiased standard deviation.",
        DEFINITIONS,
        CATALOGUE,
        "sums.m2 / static_cast<double>(sums.numel - 1)",
        "sums.m2 / static_cast<double>(sums.numel)",
    ),
    Statement(
        "`l1_norm` is the sum of magnitudes.",
        DEFINITIONS,
        CATALOGUE,
        "return with_infinite_magnitudes(sums, sums.l1);",
        "return with_infinite_magnitudes(sums, sums.l1 / 2);",
    ),
    Statement(
        "`l2_norm` is the root of the sum of squares.",
        DEFINITIONS,
        CATALOGUE,
        "std::sqrt(sums.sum_squares)",
        "sums.sum_squares",
    ),
    Statement(
        "`numel` counts all elements *(ours)*.",
        DEFINITIONS,
        CATALOGUE,
        "return static_cast<double>(sums.numel);",
        "return static_cast<double>(sums.numel - sums.zeros);",
    ),
    Statement(
        "Nothing is accumulated in the tensor's own dtype *(ours: the peer's l2_norm of FP16 300s "
        "is infinite)*.",
        "test_against_peer.py::test_the_norm_of_large_fp16_is_finite",
        ENGINE,
        "ops::statistics(tensor).cpu()",
        "ops::statistics(tensor * tensor).cpu()",
    ),
    Statement(
        "The kernel's sums are those of double-precision definitions, whatever the data, on every "
        "SIMD target.",
        "StatisticsOf.special_data_are_those_of_the_definitions_on_every_simd_target",
        "core/kernels/cpu/statistics/statistics.cpp",
        "std::min(kStatisticsPart, numel - i * kStatisticsPart);",
        "std::min(kStatisticsPart, numel - i * kStatisticsPart) & ~std::int64_t{1};",
    ),
    Statement(
        "`nan`, `posinf`, `neginf`, `zeros` and `subnormals` are exact counts; `nonfinite` is the "
        "sum of the first three *(ours)*.",
        "FinishedStatistics.hide_no_nan",
        CATALOGUE,
        "static_cast<double>(sums.nan + sums.posinf + sums.neginf);",
        "static_cast<double>(sums.posinf + sums.neginf);",
    ),
    Statement(
        "The counters are recorded with any statistic of the tensor, asked for or not, and only "
        "what was asked for is handed to loggers *(ours)*.",
        "SessionTest.counters_come_with_any_statistic_but_only_what_was_asked_is_logged",
        OBSERVATION,
        "out.add({counter}, telens::finish(counter, totals.tensor()), false);",
        "out.add({counter}, telens::finish(counter, totals.tensor()), true);",
    ),
    Statement(
        "`saturated` is recorded with any statistic of a cast *(ours)*.",
        FEATURES + "test_counters_of_a_cast_come_with_any_of_its_statistics",
        OBSERVATION,
        "      if (!request.is_of_cast()) continue;",
        "      if (request.is_of_cast()) continue;",
    ),
    Statement(
        "`cur_amax` is the largest magnitude.",
        DEFINITIONS,
        CATALOGUE,
        "larger(std::abs(sums.min), std::abs(sums.max))",
        "std::abs(sums.min)",
    ),
    Statement(
        "`dynamic_range` is log2(amax) - log2(smallest nonzero magnitude).",
        "FinishedStatistics.of_zeros_and_single_elements_are_defined",
        CATALOGUE,
        "return std::log2(amax(sums)) - std::log2(sums.smallest_nonzero);",
        "return std::log2(amax(sums));",
    ),
    Statement(
        "It is 0 for an all-zero tensor *(ours: the peer says infinity)*.",
        "FinishedStatistics.of_zeros_and_single_elements_are_defined",
        CATALOGUE,
        "if (sums.zeros == sums.numel) return 0;",
        "",
    ),
    Statement(
        "`max_blockwise_dynamic_range: {block_size: 32, dims: 1}` (the defaults) is a mapping; "
        "`dims` is 1 or 2.",
        "LogTensorStatsOptions.a_blockwise_range_is_a_mapping_with_defaults",
        "features/log_stats/statistics_option.cpp",
        "block.dims = static_cast<int>(entry.value.as_integer());",
        "block.dims = 1;",
    ),
    Statement(
        "It is the largest of the blocks' ranges; blocks end at row ends.",
        "BlockwiseDynamicRange.is_that_of_its_definition_for_every_shape_dtype_and_simd_target",
        "core/kernels/cpu/statistics/statistics_blockwise.cpp",
        "std::min(rows, first + grain * kinds.size);",
        "std::min(rows, first + kinds.size);",
    ),
    Statement(
        "It is logged as `max_blockwise_dynamic_range_block_size_32_dims_1`, for activation and "
        "weight over both orientations with `_max_over_orientations` behind.",
        FEATURES + "test_a_blockwise_range_is_logged_for_its_blocks_and_orientations",
        OBSERVATION,
        "return tensor == TensorName::activation || tensor == TensorName::weight;",
        "return tensor == TensorName::weight;",
    ),
    # ---- of a cast
    Statement(
        "`underflows%` is 100 x (nonzero before - nonzero after) / numel.",
        OF_A_CAST,
        CATALOGUE,
        "percent(sums.underflows, sums.numel)",
        "percent(sums.underflows, sums.numel - sums.underflows)",
    ),
    Statement(
        "`overflows%` is 100 x elements beyond the largest value / numel, for all per-tensor "
        "recipes *(ours: the peer has it for delayed scaling only)*.",
        FEATURES + "test_overflows_are_what_lies_beyond_a_stale_scale",
        "core/kernels/cpu/statistics/statistics_plan.cpp",
        "return x > Output::kMax * inverse;",
        "return x > 2 * Output::kMax * inverse;",
    ),
    Statement(
        "`scale_inv_min` and `scale_inv_max` are over the scales in use.",
        OF_A_CAST,
        CATALOGUE,
        "return sums.scale_inv_max;",
        "return sums.scale_inv_min;",
    ),
    Statement(
        "`mse` is mean((dequantized - x)^2).",
        OF_A_CAST,
        CATALOGUE,
        "sums.squared_error / static_cast<double>(sums.numel)",
        "sums.squared_error",
    ),
    Statement(
        "A recipe before a statistic asks what that recipe would have done.",
        FEATURES + "test_a_recipe_before_a_statistic_asks_what_it_would_have_done",
        "features/engine/running_cast.cpp",
        "if (running == nullptr) return current(cast.format);",
        "if (running == nullptr) return current(cast.format) * 2;",
    ),
    Statement(
        "It is asked in the running recipe's FP8 dtype for that tensor, else in E4M3.",
        "RequestSet.measures_each_cast_once",
        REQUESTS,
        "running ? running->format : FormatId::e4m3",
        "FormatId::e4m3",
    ),
    Statement(
        "`fp8_delayed_scaling_...` can be asked only while that recipe runs.",
        FEATURES + "test_delayed_scaling_can_be_asked_about_only_while_it_runs",
        REQUESTS,
        "RecipeId::fp8_delayed_scaling && !runs) return",
        "RecipeId::fp8_delayed_scaling && !runs && !running) return",
    ),
    Statement(
        "`_columnwise` may stand behind a name of a block recipe.",
        "StatisticName.a_recipe_may_stand_before_and_columnwise_behind",
        NAMES,
        'constexpr std::string_view kColumnwise = "_columnwise";',
        'constexpr std::string_view kColumnwise = "_column_wise";',
    ),
    Statement(
        "Before a name `mxfp8_` and `fp8_block_scaling_` may stand as well, whatever runs: the "
        "deterministic quantizer of that recipe answers *(ours: the peer needs a Blackwell GPU)*.",
        BLOCKS + "test_what_a_block_recipe_would_have_done_is_asked_in_the_running_fp8_format",
        "features/engine/block_quantizers.cpp",
        "format == FormatId::e5m2 ? Fp8Format::e5m2 : Fp8Format::e4m3;",
        "format == FormatId::e5m2 ? Fp8Format::e4m3 : Fp8Format::e4m3;",
    ),
    Statement(
        "Where NVFP4 runs, FP8 is asked about in E4M3.",
        BLOCKS + "test_nvfp4_running_is_asked_about_fp8_in_e4m3",
        REQUESTS,
        "return format == FormatId::e2m1 ? FormatId::e4m3 : format;",
        "return format == FormatId::e2m1 ? FormatId::e5m2 : format;",
    ),
    Statement(
        "With `_columnwise` the columnwise copy's own values are measured *(ours: the peer "
        "measures the rowwise copy)*.",
        BLOCKS + "test_a_training_step_has_the_statistics_of_its_recipe_and_of_others",
        "features/engine/block_copies.cpp",
        "const QuantizedData& data = columnwise ? quantized.columnwise : quantized.rowwise;",
        "const QuantizedData& data = quantized.rowwise;",
    ),
    Statement(
        "Where that copy has no scales of its own, or does not run, the statistic is left out with "
        "the reason *(ours)*.",
        BLOCKS + "test_what_has_no_meaning_is_left_out_with_the_reason",
        REQUESTS,
        "return name.columnwise ? std::nullopt : std::optional(CastRequest{recipe, format});",
        "return CastRequest{recipe, format};",
    ),
    Statement(
        "Statistics of blocks are those of their definition, for every format, orientation, shape "
        "and dtype, on every SIMD target.",
        "BlockCastStatistics.are_the_definition_for_every_format_shape_dtype_and_simd_target",
        "core/kernels/cpu/statistics/block_lines.h",
        "codes + line * code_stride",
        "codes + line * std::min(length_, code_stride)",
    ),
    Statement(
        "Special values, subnormals and blocks of zeros have the statistics of a reference in "
        "NumPy and ml_dtypes.",
        BLOCKS + "test_special_values_have_the_statistics_of_the_reference",
        "core/kernels/cpu/statistics/statistics_what_if_range.cpp",
        "hn::And(hn::Ne(magnitude, zero), hn::Eq(after, zero))",
        "hn::Eq(after, zero)",
    ),
    Statement(
        "`scale_inv_min` and `scale_inv_max` of blocks are decoded values *(ours: the peer logs "
        "MXFP8's raw exponent byte)*.",
        BLOCKS + "test_of_weights_stored_in_blocks_what_needs_the_original_is_refused",
        BLOCK_CASTS,
        "const double scale = scales.at(row, column);",
        "const double scale = std::log2(scales.at(row, column)) + 127;",
    ),
    Statement(
        "Parts of a tensor cast in blocks merge to the whole, whatever their means, and a NaN of "
        "one part stays.",
        "BlockCastStatistics.of_parts_are_those_of_the_whole",
        BLOCK_CASTS,
        "for (const CastSums& part : parts) merge(whole, part);",
        "whole = parts.back();",
    ),
    # ---- parts
    Statement(
        "Micro-batches between two `step()`s accumulate.",
        "SessionTest.micro_batches_accumulate_but_of_a_weight_the_first_counts",
        OBSERVATION,
        "return is_weight() && !parts_.empty();",
        "return !parts_.empty();",
    ),
    Statement(
        "An evaluation between two `step()`s is left out, or with the section's `mode: both` "
        "recorded under names of its own *(ours: the peer merges it into the training's "
        "statistics)*.",
        "test_evaluation_mode.py::"
        "test_an_evaluation_between_two_steps_leaves_the_statistics_of_the_training_alone",
        "hooks/config/section_keys.h",
        "return mode == Mode::both || (mode == Mode::eval) == evaluation;",
        "return true;",
    ),
    Statement(
        "Of a weight the first micro-batch counts.",
        "SessionTest.micro_batches_accumulate_but_of_a_weight_the_first_counts",
        OBSERVATION,
        "return is_weight() && !parts_.empty();",
        "return false;",
    ),
    Statement(
        "Empty tensors count for nothing.",
        "SessionTest.empty_tensors_count_for_nothing",
        OBSERVATION,
        "  if (totals.empty()) return;",
        "",
    ),
    Statement(
        "The merged standard deviation is right for shifted means *(ours: the peer's is NaN)*.",
        "FinishedStatistics.of_shifted_parts_have_the_deviation_of_the_whole",
        "core/ops/statistics_layout.h",
        "const double delta =",
        "const double delta = 0 *",
    ),
    # ---- ranks
    Statement(
        "Weights reduce over the tensor-parallel group if it has more than one rank, else they "
        "stay their rank's own.",
        "test_distributed.py::test_a_weights_statistics_are_those_of_all_its_shards_if_so_wished",
        ENGINE,
        "call.tensor_parallel.size > 1",
        "call.tensor_parallel.size > 2",
    ),
    Statement(
        "Other tensors reduce over the reduction group, by default the whole world; each rank "
        "writes the reduced value.",
        "test_distributed.py::test_statistics_are_reduced_over_the_ranks_into_one_run",
        "hooks/session/reduction_groups.cpp",
        ".tensors = of_tensors(),",
        "",
    ),
    Statement(
        "A NaN of one rank reaches all.",
        "RankExchange.a_nan_on_one_rank_reaches_all",
        "features/engine/rank_exchange.cpp",
        "if (found != rank.end()) merge_words(",
        "if (found != rank.end() && &rank == &ranks.back()) merge_words(",
    ),
    # ---- special values
    Statement(
        "A NaN makes min, max and mean NaN.",
        "FinishedStatistics.hide_no_nan",
        CATALOGUE,
        "return sums.nan > 0 ? kNan : sums.min;",
        "return sums.min;",
    ),
    Statement(
        "It does in whatever order the parts come.",
        "MergedStatisticsOf.parts_cut_anywhere_merge_to_the_whole_in_any_order",
        "core/ops/statistics_layout.h",
        "  into.nan += part.nan;",
        "  into.nan = part.nan;",
    ),
    Statement(
        "Of divided layers they are those of the whole tensor: what each rank of `tp_group` has "
        "whole counts once *(ours)*.",
        "test_parallel_statistics.py::"
        "test_statistics_of_a_divided_layer_are_those_of_whole_tensors",
        "features/engine/statistics_collect.cpp",
        "      if (brings_nothing) bring_nothing(each.sums);\n",
        "",
    ),
)
