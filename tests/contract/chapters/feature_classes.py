"""Custom feature classes."""

from statement import Statement

CLASSES = "test_feature_classes.py::"
FILES = "test_peer_feature_files.py::"
MISTAKES = "test_feature_class_mistakes.py::"

STATEMENTS = (
    Statement(
        '`@Registry.register_feature(namespace="transformer_engine")` makes a class a feature '
        "under its own name, built without arguments.",
        CLASSES + "test_inspect_tensor_follows_selection_and_schedule",
    ),
    Statement(
        "The custom statistic of the peer's documentation runs from `feature_dirs` after its "
        "import lines are changed.",
        FILES + "test_the_custom_feature_of_the_documentation_logs_its_statistic",
    ),
    Statement(
        "A feature of the peer that modifies tensors runs after its import lines are changed.",
        FILES + "test_modifying_feature_alters_gemm_and_logs",
    ),
    Statement(
        "A feature of the peer that uses quantizers runs after its import lines are changed.",
        FILES + "test_a_feature_with_quantizers_scales_by_itself",
    ),
    Statement(
        "A feature of the peer that inherits the base LogTensorStats runs after its import lines "
        "are changed.",
        FILES + "test_a_logger_that_inherits_the_base_feature_runs",
    ),
    Statement(
        "`next_enabled_iter(start_step, end_step, start_end_list, freq, iteration)` of "
        "`debug.features.utils` answers routing calls by the schedule of built-in features.",
        FILES + "test_feature_class_schedule_matches_built_in",
    ),
    Statement(
        "A class may also be registered by the script, before `initialize`.",
        CLASSES + "test_modify_tensor_takes_the_place_of_the_operand",
    ),
    Statement(
        "The features of `feature_dirs` belong to their session.",
        CLASSES + "test_sample_plugin_is_unregistered_after_session",
    ),
    Statement(
        "Methods marked with `@api_method` are the calls that a class answers.",
        CLASSES + "test_inspect_tensor_follows_selection_and_schedule",
    ),
    Statement(
        "`TEConfigAPIMapper` reads `gemms`, `tensors` and their structs.",
        "test_contract_calls.py::test_call_configuration_is_a_copy",
    ),
    Statement(
        "A class may define `parse_config_and_api(config, gemm_parsing=, tensor_parsing=, "
        "**call)`, which returns `(bool, config or None)`.",
        CLASSES + "test_a_class_may_parse_its_configuration_itself",
    ),
    Statement(
        "A class without a parser is refused by name *(ours)*.",
        CLASSES + "test_a_class_without_a_parser_is_refused",
    ),
    Statement(
        "Registry, api_method, TEConfigAPIMapper, BaseConfigAPIMapper, BaseNamespaceAPI, "
        "BaseLogger, MetricLogger, get_logger, append_parent_docstring, gather_along_first_dim "
        "and the base LogTensorStats are importable from the peer's paths and from "
        "`telens.debug`.",
        CLASSES + "test_documented_names_are_importable",
    ),
    Statement(
        "`MetricLogger.log_scalar(name, value, iteration)` logs to every logger, the text file "
        "and the run file, under any name.",
        FILES + "test_modifying_feature_alters_gemm_and_logs",
    ),
    Statement(
        "`MetricLogger.add_logger(logger)` adds a logger before or during a session; "
        "`wrap_tensorboard_writer(writer)` makes one of a SummaryWriter.",
        "test_peer_names.py::test_added_loggers_get_every_statistic_from_the_next_step",
    ),
    Statement(
        "Every public name of nvdlfw-inspect resolves; one without its function here raises when "
        "it is used.",
        "test_peer_names.py::test_a_public_name_of_the_peer_resolves",
    ),
    Statement(
        "A value named `<layer>_<tensor>_<statistic>` is a record like any other *(ours)*.",
        FILES + "test_the_custom_feature_of_the_documentation_logs_its_statistic",
    ),
    Statement(
        "If it contains several names of tensors, the last one counts: layers may have such names.",
        CLASSES + "test_class_logs_names_with_several_tensor_words",
    ),
    Statement(
        '`@Registry.register_namespace_api(namespace="mine")` on a BaseNamespaceAPI makes a '
        "namespace known to configurations, and its instance `telens.debug.mine`.",
        CLASSES + "test_a_namespace_of_ones_own_is_known_to_configurations",
    ),
    Statement(
        "`telens.debug.mine.<call>(layer_name, ...)` runs the `@api_method` with that name of "
        "the feature that the configuration enables for the layer, or else of "
        "`_default_api_impl`.",
        "test_peer_names.py::test_calls_of_an_own_namespace_go_to_the_enabled_feature",
    ),
    Statement(
        "`append_parent_docstring` adds a parent's documentation, for `explain_features`.",
        FILES + "test_a_feature_with_quantizers_scales_by_itself",
    ),
    Statement(
        "An exception in an altering feature passes through with the feature's name.",
        "RoutingTest.modification_error_names_feature_and_layer",
    ),
    Statement(
        "An observing feature that throws is switched off, recorded, and warned about once "
        "*(ours)*.",
        "RoutingTest.throwing_observer_is_disabled_with_one_warning",
    ),
    Statement(
        "The process is never ended by a feature *(ours: the peer calls sys.exit)*.",
        "test_failing_features.py::test_failing_observer_is_disabled_with_one_warning",
    ),
    Statement(
        "A name that is taken is an error that names both owners.",
        "Descriptions.duplicate_feature_is_an_error_that_names_both_owners",
    ),
    Statement(
        "A class that is registered again replaces itself.",
        CLASSES + "test_a_class_registered_again_replaces_itself",
    ),
    Statement(
        "A class whose constructor raises is named with its file, a file that fails with its path "
        "*(ours)*.",
        MISTAKES + "test_a_class_whose_constructor_raises_is_named_with_its_file",
    ),
    Statement(
        "A call that no layer makes, and half of a pair of calls, is warned of when the class is "
        "registered, with the nearest name *(ours)*.",
        MISTAKES + "test_a_call_that_never_comes_is_warned_of",
    ),
    Statement(
        "A routing call may return a list instead of the pair; an answer that is neither a bool "
        "nor a pair is an error that names class and call *(ours)*.",
        MISTAKES + "test_a_pair_may_be_a_list_and_its_numbers_numpys",
    ),
    Statement(
        "GEMMs, tensors and structs of a class that `TEConfigAPIMapper` parses are checked when "
        "its configuration is loaded *(ours)*.",
        MISTAKES + "test_class_parameters_are_checked_at_load",
    ),
    Statement(
        "A class may declare its parameters: keys, types and defaults are checked and filled in "
        "when its configuration is loaded *(ours)*.",
        MISTAKES + "test_declared_parameters_are_checked_when_they_are_loaded",
    ),
    Statement(
        "A plugin in Python and the same in C++ record the same *(ours)*.",
        CLASSES + "test_the_sample_plugin_logs_the_same_in_python_and_in_cpp",
    ),
    Statement(
        "A plugin in C++ that was built for another telens or torch is refused unopened, and both "
        "versions are named *(ours)*.",
        "PluginTest.plugin_for_other_versions_is_rejected_unopened",
    ),
    Statement(
        "`TEDefaultFeatures` has the seven calls with their defaults, to which a class can "
        "delegate.",
        "test_call_defaults.py::test_call_defaults_match_the_contract",
    ),
)
