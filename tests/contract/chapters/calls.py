"""The seven calls: when features are called, the arguments of the calls, and what results do."""

from statement import Statement

MINE = "test_contract_calls.py::"

STATEMENTS = (
    # ---- routing
    Statement(
        "Routing calls are made at each forward of a due iteration, in every micro-batch.",
        "RoutingTest.every_micro_batch_of_a_due_iteration_asks",
    ),
    Statement(
        "Routing calls are also made under `no_grad`.",
        "test_contract_calls.py::test_a_forward_without_gradients_is_asked_about_and_watched_too",
    ),
    Statement(
        "Routing calls are also made for the tensors of the backward, which uses the same answers.",
        "test_contract_calls.py::test_all_tensors_are_asked_for_at_the_forward",
    ),
    Statement(
        "A late backward calls the features that were enabled in its forward *(ours)*.",
        "RoutingTest.late_backward_calls_the_features_of_its_forward",
    ),
    Statement(
        "`fp8_gemm_enabled` is true without a feature, the other three routing calls are false.",
        "test_contract_calls.py::test_calls_without_features_return_defaults",
    ),
    Statement(
        "`fp8_gemm_enabled` is asked only under a recipe.",
        "RoutingTest.fp8_gemm_enabled_is_asked_only_under_a_recipe",
    ),
    Statement(
        "Layers do not call it if both operands are modified.",
        "RoutingTest.fp8_gemm_enabled_is_skipped_if_both_operands_are_modified",
    ),
    Statement(
        "The answer is a bool or `(bool, next_iteration)`; a bare bool is asked again in the next "
        "iteration.",
        "test_contract_calls.py::test_a_bare_bool_is_asked_again_in_the_next_iteration",
    ),
    Statement(
        "The bool holds for this iteration, `next_iteration` is the next one to ask in: `(True, "
        "5)` in iteration 0 means on in 0, off in 1-4, asked in 5.",
        "test_contract_calls.py::test_a_pair_names_the_next_iteration_to_ask_in",
    ),
    Statement(
        "A `next_iteration` of None means never again.",
        "RoutingTest.a_feature_that_says_never_again_is_never_asked_again",
    ),
    Statement(
        "Between these iterations the layer runs undebugged, on its fast path, until the earliest "
        "iteration that any of its tensors and features returned.",
        "RoutingTest.answer_holds_until_its_next_iteration",
    ),
    Statement(
        "A layer does not stay awake for calls that a feature class does not have *(ours)*.",
        "test_feature_classes.py::test_a_layer_sleeps_between_the_calls_that_a_class_declares",
    ),
    Statement(
        "A False from `fp8_gemm_enabled` holds until its `next_iteration` *(ours)*.",
        "RoutingTest.a_false_from_fp8_gemm_enabled_holds_until_its_next_iteration",
    ),
    Statement(
        "A False with None is permanent *(ours)*.",
        "RoutingTest.false_without_next_iteration_is_permanent",
    ),
    # ---- what is passed
    Statement(
        "`config` and `layer_name` are passed by position, all else by keyword, under the names "
        "of Transformer Engine.",
        "test_contract_calls.py::test_every_call_passes_the_keywords_of_the_contract",
    ),
    Statement(
        "A feature gets only the keywords that it declares; all with `**kwargs` *(ours)*.",
        "test_contract_calls.py::test_a_feature_gets_only_the_keywords_that_it_declares",
    ),
    Statement(
        "`modify_tensor` gets the `dtype` of a normal cast, and none for outputs.",
        "test_contract_calls.py::test_modify_tensor_passes_the_dtype_of_the_cast",
    ),
    Statement(
        "An update of the weight cache passes `out`, which the call fills; it returns None.",
        "test_contract_calls.py::test_an_update_of_a_cached_weight_passes_out_which_is_filled",
    ),
    Statement(
        "`out` is also passed if a layer updates the weight that it caches over micro-batches.",
        "test_feature_classes.py::test_an_update_of_the_weight_cache_passes_out",
    ),
    Statement(
        "A class without the parameter `out` returns a tensor instead *(ours)*.",
        "test_feature_classes.py::test_an_update_of_the_weight_cache_passes_out",
    ),
    Statement(
        "`default_quantizer` is the recipe's quantizer, and None outside of an FP8 autocast.",
        "test_contract_calls.py::test_default_quantizer_is_none_outside_fp8",
    ),
    Statement(
        "`inspect_tensor` gets the original and, as `rowwise_quantized_tensor` and "
        "`columnwise_quantized_tensor`, the operands of the first and the second GEMM: plain in "
        "high precision, None for outputs.",
        "test_contract_calls.py::test_inspect_tensor_gets_original_and_operands",
    ),
    Statement(
        "`tensor` is None for weights that are stored in FP8.",
        "test_contract_calls.py::test_fp8_stored_weight_lacks_an_original",
    ),
    Statement(
        "`inspect_tensor_postquantize` is called for inputs only, and only if a cast or "
        "`modify_tensor` ran.",
        "WatchedLinear.no_postquantize_call_without_a_cast",
    ),
    Statement(
        "`inspect_tensor_postquantize` gets `gemm`, and in `rowwise` whether the tensor feeds the "
        "first GEMM.",
        "test_contract_calls.py::test_postquantize_requires_a_cast_or_modification",
    ),
    Statement(
        "`config` is a copy without `enabled` and without the matched lists, plus `tensor`, and "
        "`gemm` in `modify_tensor*`; `inspect_*` keeps `gemms`.",
        "test_contract_calls.py::test_call_configuration_is_a_copy",
    ),
    Statement(
        "A custom parser gets a copy of the feature's configuration, too.",
        "test_contract_calls.py::test_custom_parser_may_modify_its_arguments",
    ),
    Statement(
        "`fp8_gemm_enabled` gets `gemm` and keeps `tensors`.",
        "test_contract_calls.py::test_fp8_gemm_enabled_gets_the_gemm_and_keeps_the_tensors",
    ),
    Statement(
        "A feature class receives the same arguments as in nvdlfw-inspect.",
        "MatchedConfig.equals_the_configuration_passed_by_the_peer",
    ),
    # ---- order
    Statement(
        "For an input the order is: cast, `inspect_tensor` on the original, then "
        "`inspect_tensor_postquantize` for the first and the second GEMM. For an output only "
        "`inspect_tensor` is called.",
        "WatchedLinear.calls_follow_the_contract_order",
    ),
    Statement(
        "`modify_tensor` is called before both, first for the second GEMM. For an output "
        "`inspect_tensor` gets the modified tensor.",
        "WatchedLinear.modifies_second_gemm_first_and_inspects_original",
    ),
    Statement(
        "The activation feeds fprop and wgrad, the weight fprop and dgrad, the gradient dgrad and "
        "wgrad; output, dgrad and wgrad come out of them.",
        "WatchedLinear.calls_follow_the_contract_order",
    ),
    # ---- effects of the answers
    Statement(
        "`modify_tensor` outranks `fp8_gemm_enabled`.",
        "test_contract_calls.py::test_modify_tensor_outranks_fp8_gemm_enabled",
    ),
    Statement(
        "A GEMM whose `fp8_gemm_enabled` is false runs in high precision, the others stay in FP8.",
        "WatchedLinear.disabled_fp8_gemm_runs_in_high_precision",
    ),
    Statement(
        "Two quantized operands are multiplied in FP8, two plain ones in high precision; a "
        "mixed pair is an error that names the layer, the GEMM and both tensors.",
        "WatchedLinear.mixed_precision_operands_are_named_in_the_error",
    ),
    Statement(
        "All observers of a tensor run, each only in its scheduled iterations *(ours: the peer "
        "runs all when any is due)*.",
        "RoutingTest.each_observer_runs_in_its_own_iterations_only",
    ),
    Statement(
        "Any False from `fp8_gemm_enabled` wins *(ours)*.",
        "RoutingTest.any_false_from_fp8_gemm_enabled_wins",
    ),
    Statement(
        "Two feature classes that modify the same tensor of a GEMM in the same iteration are an "
        "error that names both.",
        "RoutingTest.two_features_that_modify_the_same_operand_are_an_error",
    ),
    # ---- code that instruments itself
    Statement(
        "Each of the seven is `debug.transformer_engine.<call>(layer_name=..., ...)`, for code "
        "that watches its own layers.",
        "test_contract_calls.py::test_self_instrumented_code_drives_all_seven_calls",
    ),
    Statement(
        "These functions also accept `layer_name` by position.",
        MINE + "test_they_take_the_name_of_the_layer_by_position",
    ),
    Statement(
        "Routing calls return `(enabled, next_iteration)`.",
        MINE + "test_routing_calls_return_the_pair_and_are_as_true_as_its_first",
    ),
    Statement(
        "The truth value of the pair is the truth value of its first element *(ours)*.",
        MINE + "test_routing_calls_return_the_pair_and_are_as_true_as_its_first",
    ),
    Statement(
        "A call may be about another iteration than the running one.",
        MINE + "test_a_call_may_be_about_another_iteration_than_the_running_one",
    ),
    Statement(
        "A misspelt GEMM or tensor is an error with the nearest name *(ours)*.",
        MINE + "test_a_misspelt_name_is_an_error_with_the_nearest",
    ),
    Statement(
        "Layers hand the `tp_group` and `tp_size` that they were given to every call.",
        "test_tensor_parallel_group.py::"
        "test_layers_hand_the_group_that_they_were_given_to_every_call",
    ),
    Statement(
        "Only a layer whose wgrad the configuration may ever look at makes it apart from "
        "`main_grad`; the others keep the addition of `fuse_wgrad_accumulation` *(ours)*.",
        "test_main_grad_watched.py::test_only_observable_wgrad_adds_in_two_steps",
    ),
)
