"""The session API."""

from statement import Statement

STATEMENTS = (
    Statement(
        "`initialize(config_file, feature_dirs, statistics_logger, log_dir, init_training_step, "
        "tb_writer, default_logging_enabled)` and the other functions of a session take the "
        "peer's arguments, with the peer's defaults.",
        "test_contract_session.py::test_the_session_functions_take_the_peers_arguments",
    ),
    Statement(
        "`config_file` may be a dict.",
        "test_debug_session.py::test_logger_receives_statistics_with_iteration",
    ),
    Statement(
        "`config_file` may be a path as text or a `pathlib.Path`.",
        "test_debug_session.py::test_a_yaml_file_may_be_given_as_str_or_path",
    ),
    Statement(
        "A dict may contain numbers of numpy and torch, sets and paths; any other value is an "
        "error that names its key *(ours)*.",
        "test_arguments.py::test_configuration_accepts_numpy_torch_sets_and_paths",
    ),
    Statement(
        '`feature_dirs=""` means no folder.',
        "test_arguments.py::test_an_empty_feature_dirs_is_none",
    ),
    Statement(
        "A `statistics_logger` or `tb_writer` that cannot log is an error that names the argument "
        "*(ours)*.",
        "test_arguments.py::test_a_logger_that_cannot_log_is_an_error_that_names_the_argument",
    ),
    Statement(
        "A wrong loss, value, name, message or level is an error that names function and argument "
        "*(ours)*.",
        "test_arguments.py::test_wrong_argument_names_function_and_argument",
    ),
    Statement(
        '`config_file=""` is a session without configuration, and no error.',
        "test_contract_session.py::test_session_without_configuration_records_nothing",
    ),
    Statement(
        "A missing config file is an error *(ours: the peer continues without it)*.",
        "SessionTest.a_config_file_that_is_missing_is_an_error",
    ),
    Statement(
        "An empty config file is accepted.",
        "ConfigFile.that_is_empty_selects_nothing",
    ),
    Statement(
        "An empty config file causes a warning that names it *(ours)*.",
        "ConfigFile.that_is_empty_selects_nothing",
    ),
    Statement(
        "A configuration whose sections are all disabled is accepted, and watches nothing.",
        "test_contract_session.py::test_all_sections_disabled_is_valid",
    ),
    Statement(
        "An unknown keyword argument is an error.",
        "test_debug_session.py::test_unknown_arguments_and_options_are_errors",
    ),
    Statement(
        "`feature_dirs` is a folder or a list of folders, walked recursively; every .py in them "
        "is run.",
        "test_contract_session.py::test_feature_dirs_are_walked_recursively",
    ),
    Statement(
        "Plugins (.so) in `feature_dirs` are loaded, at any depth *(ours)*.",
        "PluginTest.duplicate_feature_is_an_error_that_names_both_plugins",
    ),
    Statement(
        "The peer's own feature folder is skipped with a message: built-in features are always "
        "there.",
        "test_feature_classes.py::test_the_peers_own_feature_folder_is_skipped_with_a_message",
    ),
    Statement(
        "A second `initialize` without `end_debug` is an error, and the first session continues.",
        "SessionTest.second_initialize_is_an_error_and_first_session_continues",
    ),
    Statement(
        "A failed `initialize` leaves no session.",
        "SessionTest.a_failed_initialize_leaves_no_session",
    ),
    Statement(
        "A failed `initialize` forgets the feature classes of its `feature_dirs`.",
        "test_contract_session.py::test_a_failed_initialize_forgets_the_features_of_its_folders",
    ),
    Statement(
        "`step`, `end_debug` and `initialize_training_step` without a session do nothing.",
        "SessionTest.only_step_and_ends_are_allowed_without_a_session",
    ),
    Statement(
        "All other functions without a session raise.",
        "test_debug_session.py::test_calls_outside_a_session_raise_except_step",
    ),
    Statement(
        "`step()` ends an iteration; iterations count from `init_training_step`.",
        "SessionTest.iterations_count_from_init_training_step",
    ),
    Statement(
        "`initialize_training_step(n)` sets the number of the running iteration, and wakes layers "
        "that wait for another one.",
        "RoutingTest.setting_the_iteration_wakes_a_sleeping_layer_also_backwards",
    ),
    Statement(
        "`end_debug()` writes the values of an unfinished iteration *(ours: the peer loses them)*.",
        "SessionTest.statistics_not_yet_stepped_are_flushed_by_end_debug",
    ),
    Statement(
        "`list_features()` and `explain_features()` print only on rank 0.",
        "test_contract_session.py::test_features_are_explained_on_rank_0_only",
    ),
    Statement(
        '`explain_features` takes one name, several or `"all"`, each as '
        "`transformer_engine.FakeQuant` or bare; an unknown one is an error with the nearest name.",
        "SessionTest.features_are_listed_and_explained_by_either_name",
    ),
    Statement(
        "`set_tensor_reduction_group(group, layer_name=None)` sets the group for all layers, or "
        "for one *(ours: the peer ignores the name)*.",
        "test_distributed.py::test_statistics_of_ones_own_tensors_follow_the_groups",
    ),
    Statement(
        "`set_weight_tensor_tp_group_reduce(bool)`, True by default, decides whether the "
        "statistics of weights are reduced over their tensor-parallel group.",
        "test_distributed.py::test_weight_statistics_cover_every_shard_if_enabled",
    ),
    Statement(
        "`log_message` writes once per text, layer and extra arguments *(ours: the peer writes "
        "once per calling line, and loses other texts of that line)*.",
        "SessionTest.a_message_is_written_once_per_text_layer_and_extra_arguments",
    ),
    Statement(
        "`statistics_logger` takes the place of `tb_writer`.",
        "SessionTest.statistics_logger_replaces_tb_writer_and_optionally_the_file",
    ),
    Statement(
        "A logger or writer takes the place of the text file of statistics.",
        "SessionTest.loggers_get_rows_in_step_with_the_iteration_they_belong_to",
    ),
    Statement(
        "`default_logging_enabled=True` also writes the text file.",
        "SessionTest.statistics_logger_replaces_tb_writer_and_optionally_the_file",
    ),
    Statement(
        "The run file is always written *(ours)*.",
        "SessionTest.counters_are_recorded_but_only_requested_ones_are_logged",
    ),
    Statement(
        "`with debug.session(...)` ends its session *(ours)*.",
        "test_debug_session.py::test_a_yaml_file_may_be_given_as_str_or_path",
    ),
    Statement(
        "`step(loss)` keeps the loss of the iteration that ends *(ours)*.",
        "test_contract_session.py::test_the_losses_of_step_are_kept_by_iteration",
    ),
    Statement(
        "A loss that is not finite is reported in its step, for any configuration *(ours)*.",
        "test_loss_not_finite.py::test_nonfinite_loss_is_reported_in_its_step",
    ),
    Statement(
        "`record(name, value)` keeps a number of the running iteration *(ours)*.",
        "SessionTest.losses_and_custom_values_are_recorded_with_their_iteration",
    ),
    Statement(
        "`step(loss, lr=..., anything=...)` keeps further numbers of the iteration that ends "
        "*(ours)*.",
        "test_recorded_scalars.py::test_step_records_any_number_under_its_name",
    ),
    Statement(
        "A misspelt `loss=` of a `step` without a loss is warned of *(ours)*.",
        "test_recorded_scalars.py::test_a_misspelt_loss_is_recorded_and_warned_of",
    ),
    Statement(
        "`watch_optimizer(optimizer, every)` keeps `lr`, `grad_norm` and `update_to_weight` of an "
        "optimizer's steps *(ours)*.",
        "test_recorded_scalars.py::test_a_watched_optimizer_records_its_steps",
    ),
    Statement(
        "A run that SIGTERM ends says so, and in which iteration *(ours)*.",
        "test_broken_off_recording.py::"
        "test_a_run_that_sigterm_ended_says_so_and_in_which_iteration",
    ),
    Statement(
        "`plan(config, layer_names)` shows the effect of a configuration on layers with these "
        "names, and how much it would record *(ours)*.",
        "test_plan.py::test_estimate_matches_the_recorded_run",
    ),
    Statement(
        "`telens.open_run(path)` reads a run back as tables *(ours)*.",
        "test_debug_session.py::test_the_run_is_read_back_as_tables",
    ),
    Statement(
        '`recording={"max_size": bytes}` limits the files of a rank; below 16 MiB it ends the '
        "recording there, and nothing else *(ours)*.",
        "test_contract_session.py::test_max_size_ends_the_recording_and_not_the_training",
    ),
    Statement(
        "A `max_size` of 16 MiB and more thins the oldest iterations instead, and the run says so "
        "*(ours)*.",
        "Thinning.keeps_long_run_below_max_size_with_exact_rows",
    ),
    Statement(
        'A full queue drops the newest rows, which are counted; `recording={"on_full": "block"}` '
        "waits instead *(ours)*.",
        "RunWriter.on_full_block_loses_no_row",
    ),
    Statement(
        "1,000 forwards of a layer without a `step()` are warned about, once *(ours)*.",
        "SessionTest.a_thousand_forwards_without_a_step_are_warned_about_once",
    ),
    Statement(
        "A training that never calls `step()` gets a warning when the session ends; evaluations "
        "and a single forward do not *(ours)*.",
        "ForgottenStepTest.warns_if_layers_ran_repeatedly",
    ),
    Statement(
        "A session that was left open is closed at the end of the process *(ours)*.",
        "SessionTest.a_session_left_open_is_closed_at_exit",
    ),
    Statement(
        "At the end of a Python program the loggers of an open session get its last values "
        "*(ours)*.",
        "test_debug_session.py::test_a_session_left_open_is_closed_at_exit_with_python_loggers",
    ),
    Statement(
        "Sessions in a process share no files, messages or layer numbers *(ours)*.",
        "SessionTest.successive_sessions_share_no_state",
    ),
    Statement(
        "A model may outlive a session and is watched by the next one *(ours)*.",
        "RoutingTest.a_layer_without_features_wakes_up_in_the_next_session",
    ),
    Statement(
        "A layer that was built before `initialize` is watched *(ours: the peer leaves it out "
        "silently)*.",
        "test_contract_session.py::test_a_layer_that_was_built_before_the_session_is_watched",
    ),
    Statement(
        "A logger that throws is reported once and not called again, and training continues "
        "*(ours: in the peer the exception propagates)*.",
        "SessionTest.throwing_logger_is_reported_once_and_not_called_again",
    ),
)
