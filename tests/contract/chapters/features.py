"""The built-in features."""

from statement import Statement

FEATURES = "test_contract_features.py::"
BLOCKS = "test_block_statistics.py::"
FAKE = "test_fake_quant.py::"
PEER = "test_against_peer.py::"
AGREEMENT = "test_rank_agreement.py::"
COLLECTIVES = "test_collective_check.py::"

STATEMENTS = (
    Statement(
        "LogTensorStats logs statistics of the high-precision tensor, for all six tensors.",
        "ObservedTrainingTest.recorded_values_match_double_precision_reference",
    ),
    Statement(
        "LogFp8TensorStats logs statistics of the quantized tensor under the running recipe.",
        FEATURES + "test_running_recipe_statistics_match_the_cast",
    ),
    Statement(
        "LogFp8TensorStats supports activation, weight and gradient, and an attention's tensors "
        "except `scores`.",
        "OptionMistakes.list_the_valid_values",
    ),
    Statement(
        "If a layer runs unquantized, LogFp8TensorStats skips it with one warning for all tensors "
        "*(ours)*; the log names each tensor.",
        FEATURES + "test_an_unquantized_layer_is_left_out_with_one_warning",
    ),
    Statement(
        "If only one of a tensor's GEMMs is quantized, that copy is measured *(ours: the peer "
        "fails)*.",
        FEATURES + "test_disabled_gemm_measures_the_other_copy",
    ),
    Statement(
        "For a block recipe LogFp8TensorStats reads the codes and scales that the layer's GEMMs "
        "get.",
        BLOCKS + "test_step_records_running_and_whatif_statistics",
    ),
    Statement(
        "For a block recipe with one GEMM disabled, the copy of the other one is measured "
        "*(ours)*.",
        BLOCKS + "test_disabled_gemm_measures_the_other_copy",
    ),
    Statement(
        "LogNvfp4TensorStats logs `underflows%` and `mse` of the tensor in NVFP4, as "
        "`nvfp4_<stat>`.",
        "LogNvfp4TensorStatsOptions.are_logged_with_the_recipe_before_the_name",
    ),
    Statement(
        "LogNvfp4TensorStats supports activation, weight and gradient, with the statistics of "
        "Transformer Engine; another statistic is an error that names the feature that has it.",
        "OptionMistakes.list_the_valid_values",
    ),
    Statement(
        "If NVFP4 does not run, LogNvfp4TensorStats measures the effect that NVFP4 would have "
        "*(ours: the peer needs the recipe, and a Blackwell GPU)*.",
        BLOCKS + "test_step_records_running_and_whatif_statistics",
    ),
    Statement(
        "What-if questions draw no random numbers: watching NVFP4, whose gradients are rounded by "
        "chance, changes no bit.",
        "ObservedTrainingTest.observing_everything_changes_no_bit",
    ),
    Statement(
        "The recorded gradients of attention belong to the tensors that it was given *(ours)*.",
        "test_attention_watched.py::test_tensors_and_gradients_are_those_that_were_given",
    ),
    Statement(
        "A forward that a checkpoint computes again is recorded once, of an attention by any "
        "checkpoint *(ours)*.",
        "test_attention_watched.py::test_a_forward_that_is_computed_again_is_recorded_once",
    ),
    Statement(
        "Attention is not observed unless a feature names one of its tensors, for any selection "
        "in `layers` *(ours)*.",
        "test_attention_watched.py::test_section_without_attention_tensors_records_nothing",
    ),
    Statement(
        "The statistics of `scores` equal those computed in FP64 from the softmax's argument, "
        "up to FP32's rounding *(ours)*.",
        "test_attention_watched.py::test_score_statistics_match_fp64",
    ),
    Statement(
        "`LogFp8Stats` is LogFp8TensorStats.",
        "LogFp8TensorStatsOptions.take_every_statistic_of_a_cast_with_and_without_recipe",
    ),
    Statement(
        "FakeQuant quantizes and dequantizes chosen tensors of chosen GEMMs.",
        "AlteringFeaturesTest.fake_quant_gives_the_gemm_fake_quantized_operands",
    ),
    Statement(
        "FakeQuant answers False to `fp8_gemm_enabled` for each of its GEMMs, also if it alters "
        "both operands.",
        "test_contract_calls.py::test_fake_quant_disables_fp8_for_its_gemms",
    ),
    Statement(
        "The GEMMs of FakeQuant run in high precision; other GEMMs are unchanged.",
        "AlteringFeaturesTest.fake_quant_does_not_change_unselected_gemms",
    ),
    Statement(
        "The values of FakeQuant equal a cast followed by a dequantization, in any shape and "
        "dtype.",
        "FakeQuantize.matches_cast_and_decode_for_all_shapes_and_dtypes",
    ),
    Statement(
        "FakeQuant can alter all six tensors.",
        "AlteringFeaturesTest.fake_quant_alters_outputs_too",
    ),
    Statement(
        "`quant_format` is FP8E4M3, FP8E5M2, MXFP8E4M3 or MXFP8E5M2, *(ours)* also FP8BLOCKE4M3 or "
        "FP8BLOCKE5M2 (128-blocks), NVFP4, or, on the CPU, MXFP6E3M2 or MXFP6E2M3; another one is "
        "an error with the nearest name.",
        "OptionMistakes.list_the_valid_values",
    ),
    Statement(
        "The blocks of a block format are along the GEMM's summed dimension, so a tensor has "
        "different values in its two GEMMs.",
        FAKE + "test_each_gemm_gets_the_operands_of_the_reference",
    ),
    Statement(
        "Blocks are the recipe's default for such a tensor: squares for weights, of 128x128 or, "
        "in NVFP4, of 16x16.",
        FAKE + "test_each_gemm_gets_the_operands_of_the_reference",
    ),
    Statement(
        "Outputs are quantized along their rows.",
        FAKE + "test_outputs_are_quantized_along_their_rows",
    ),
    Statement(
        "A shape that a block format does not support is an error with layer, tensor, GEMM, "
        "shape and the requirement.",
        FAKE + "test_unsupported_block_shape_is_named",
    ),
    Statement(
        "A weight that is kept over micro-batches is filled at its update, in every format.",
        FAKE + "test_cached_weight_is_reused_in_micro_batches",
    ),
    Statement(
        "A weight that is kept over micro-batches is fake-quantized in every one of them "
        "*(ours: the peer fails at its first update)*.",
        "AlteringFeaturesTest.a_kept_weight_is_fake_quantized_in_every_micro_batch",
    ),
    Statement(
        "PerTensorScaling quantizes chosen tensors of chosen GEMMs under scales from their own "
        "amaxes, within delayed scaling; the GEMM runs in FP8, in the recipe's formats.",
        "PerTensorScalingTest.on_all_tensors_matches_current_scaling_bit_for_bit",
    ),
    Statement(
        "Tensors that it does not select keep delayed scaling.",
        "PerTensorScalingTest.leaves_other_tensors_and_gemms_to_delayed_scaling",
    ),
    Statement(
        "PerTensorScaling serves activation, weight and gradient.",
        "PerTensorScalingTest.outputs_are_rejected_at_load",
    ),
    Statement(
        "A weight that it quantizes and a layer keeps is filled at its update.",
        "PerTensorScalingTest.fills_the_weight_cache",
    ),
    Statement(
        "PerTensorScaling outside of fp8_autocast, while calibrating or under another recipe is "
        "an error that names the running precision.",
        "PerTensorScalingTest.other_recipes_are_an_error_that_names_the_recipe",
    ),
    Statement(
        "PerTensorScaling accepts a schedule, after which delayed scaling continues with an "
        "up-to-date history *(ours: the peer's history stops meanwhile)*.",
        "PerTensorScalingTest.delayed_scaling_continues_after_its_schedule",
    ),
    Statement(
        "Statistics of a tensor that a feature quantized with a separate scale describe the "
        "codes that ran.",
        "test_per_tensor_scaling.py::test_statistics_match_the_codes_used",
    ),
    Statement(
        "DisableFP8GEMM (also `DisableQuantizationGEMM`) runs chosen GEMMs in high precision.",
        "AlteringFeaturesTest.a_disabled_gemm_leaves_the_others_in_fp8",
    ),
    Statement(
        "DisableFP8Layer (also `DisableQuantizationLayer`) runs a whole layer in high precision.",
        "AlteringFeaturesTest.disabled_layer_matches_high_precision_bit_for_bit",
    ),
    Statement(
        "Weights that are stored in FP8 can be modified like others *(ours)*.",
        "test_feature_classes.py::test_a_weight_that_is_stored_in_fp8_can_be_modified",
    ),
    Statement(
        "For weights stored in FP8, statistics that need the original are rejected with the "
        "reason.",
        FEATURES + "test_fp8_stored_weights_reject_original_statistics",
    ),
    Statement(
        "The base LogTensorStats, driven by `log_tensor_stats(layer_name, *, tensor_name, "
        "tensor)`, logs at once the lines of the peer, for tensors of any name.",
        PEER + "test_script_tensor_statistics_match_the_peer",
    ),
    Statement(
        "`log_tensor_stats` returns {statistic: 0-dim float tensor}, or {} if the tensor is not "
        "selected or not due.",
        PEER + "test_script_tensor_statistics_match_the_peer",
    ),
    Statement(
        "If no group is set, `log_tensor_stats` logs statistics of the whole world on the last "
        "rank.",
        "test_distributed.py::test_statistics_of_ones_own_tensors_follow_the_groups",
    ),
    Statement(
        "With `skip_reduction` each rank logs separately; `reduction_group` and `iteration` "
        "apply to one call.",
        "test_distributed.py::test_statistics_of_ones_own_tensors_follow_the_groups",
    ),
    Statement(
        "The statistics of `log_tensor_stats` may be written in upper or lower case.",
        PEER + "test_base_statistic_names_ignore_case",
    ),
    Statement(
        "DumpTensors writes <log_dir>/tensor_dumps/rank_<r>/iter_<000000>/<layer>_<tensor>, HDF5 "
        "instead of a pickle *(ours)*.",
        "test_gemm_configs.py::test_dump_one_gemm_writes_six_tensors_once",
    ),
    Statement(
        "Colliding names and later micro-batches get a suffix *(ours)*.",
        "test_dump_tensors.py::test_colliding_names_and_later_micro_batches_get_a_suffix",
    ),
    Statement(
        "high_precision_tensor and quantized_tensor are False by default; without either nothing "
        "is written.",
        "test_dump_tensors.py::test_dump_without_selected_tensors_is_logged",
    ),
    Statement(
        "RankAgreement *(ours)* names the first layer, tensor and rank that differs in a bit, "
        "among ranks that must be equal.",
        AGREEMENT + "test_the_first_layer_tensor_and_rank_that_differs_is_named",
    ),
    Statement(
        "A divided weight is compared with the same part on other ranks, and with nothing else.",
        AGREEMENT + "test_divided_weight_is_not_compared_as_replica",
    ),
    Statement(
        "An activation or a gradient that each rank of tp_group has whole is compared, so that "
        "ranks that were given other batches are found.",
        AGREEMENT + "test_differing_tp_input_is_found",
    ),
    Statement(
        "A rank that misses the comparison is named, and the others continue recording.",
        AGREEMENT + "test_missing_rank_is_named_and_others_continue",
    ),
    Statement(
        "CollectiveCheck *(ours)* finds a NaN that a collective loses, a result that differs "
        "from the sent data, and different groups.",
        COLLECTIVES + "test_a_collective_that_brings_something_else_is_found",
    ),
    Statement(
        "For a reduce-scatter CollectiveCheck compares the rows that each rank got, and the total "
        "over ranks.",
        "CollectiveVerdict.a_scattered_sum_of_the_other_ranks_rows",
    ),
    Statement(
        "CollectiveCheck names the parameter whose gradient was not reduced, and the rank.",
        COLLECTIVES + "test_a_gradient_that_was_not_reduced_is_named",
    ),
)
