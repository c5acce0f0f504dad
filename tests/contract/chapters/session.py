"""The session API."""

from statement import Statement

SESSIONS = "python/telens/debug/sessions.py"
FOLDERS = "python/telens/debug/feature_folders.py"
CONFIGURATION = "python/telens/debug/configuration.py"

STATEMENTS = (
    Statement(
        "`initialize(config_file, feature_dirs, statistics_logger, log_dir, init_training_step, "
        "tb_writer, default_logging_enabled)` and the other functions of a session take the "
        "peer's arguments, with the peer's defaults.",
        "test_contract_session.py::test_the_session_functions_take_the_peers_arguments",
        SESSIONS,
        'log_dir: str | os.PathLike = ".",',
        'log_dir: str | os.PathLike = "logs",',
    ),
    Statement(
        "`config_file` may be a dict.",
        "test_debug_session.py::test_a_session_hands_statistics_to_the_logger_with_their_iteration",
        CONFIGURATION,
        "if isinstance(config, Mapping):\n        return",
        "if False:\n        return",
    ),
    Statement(
        "`config_file` may be a path as text or a `pathlib.Path`.",
        "test_debug_session.py::test_a_yaml_file_may_be_given_as_str_or_path",
        CONFIGURATION,
        "return os.fspath(config), None",
        "return config, None",
    ),
    Statement(
        "A dict may hold numbers of numpy and torch, sets and paths; whatever else is an error "
        "that names its key *(ours)*.",
        "test_arguments.py::"
        "test_a_configuration_may_hold_numbers_of_numpy_and_torch_sets_and_paths",
        CONFIGURATION,
        'if hasattr(value, "item") and hasattr(value, "tolist"):',
        "if False:",
    ),
    Statement(
        '`feature_dirs=""` is no folder.',
        "test_arguments.py::test_an_empty_feature_dirs_is_none",
        FOLDERS,
        'if each != ""]',
        "]",
    ),
    Statement(
        "A `statistics_logger` or `tb_writer` that cannot log is an error that names the argument "
        "*(ours)*.",
        "test_arguments.py::test_a_logger_that_cannot_log_is_an_error_that_names_the_argument",
        "python/telens/debug/arguments.py",
        "if value is not None and not callable(getattr(value, method, None)):",
        "if False:",
    ),
    Statement(
        "A wrong loss, value, name, message or level is an error that names function and argument "
        "*(ours)*.",
        "test_arguments.py::test_a_wrong_argument_is_an_error_that_names_function_and_argument",
        "python/telens/debug/arguments.py",
        "if not isinstance(value, str | bytes):",
        "if True:",
    ),
    Statement(
        '`config_file=""` is a session without configuration, and no error.',
        "test_contract_session.py::test_without_a_configuration_a_session_watches_nothing",
        "hooks/session/start_options.cpp",
        "if (options.config_file.empty()) return {};",
        "",
    ),
    Statement(
        "A config file that is named and missing is an error *(ours: the peer goes on without)*.",
        "SessionTest.a_config_file_that_is_missing_is_an_error",
        "hooks/config/load.cpp",
        "if (!file) refuse({errno, std::generic_category()});",
        "",
    ),
    Statement(
        "An empty config file is no error.",
        "ConfigFile.that_is_empty_selects_nothing",
        "hooks/config/load.cpp",
        "if (root.is_null()) {",
        "if (false) {",
    ),
    Statement(
        "It is warned of, with its name *(ours)*.",
        "ConfigFile.that_is_empty_selects_nothing",
        "hooks/config/load.cpp",
        "it is empty and watches nothing; ",
        "",
    ),
    Statement(
        "A configuration whose sections are all disabled is no error, and watches nothing.",
        "test_contract_session.py::"
        "test_a_configuration_whose_sections_are_all_disabled_is_no_error",
        "hooks/config/load.cpp",
        "return enabled->as_bool();",
        "return true;",
    ),
    Statement(
        "An unknown keyword argument is an error.",
        "test_debug_session.py::test_unknown_arguments_and_options_are_errors",
        SESSIONS,
        "    recording: dict[str, Any] | None = None,\n) -> None:",
        "    recording: dict[str, Any] | None = None,\n    **unknown: Any,\n) -> None:",
    ),
    Statement(
        "`feature_dirs` is a folder or a list of folders, walked recursively; every .py in them "
        "is run.",
        "test_contract_session.py::test_feature_dirs_are_walked_recursively",
        FOLDERS,
        'folder.rglob("*.py")',
        'folder.glob("*.py")',
    ),
    Statement(
        "Plugins (.so) in `feature_dirs` are loaded, wherever they lie *(ours)*.",
        "PluginTest.a_feature_that_two_plugins_register_is_an_error_that_names_both",
        "hooks/plugin_loader.cpp",
        "std::filesystem::recursive_directory_iterator walk(folder, error);",
        "std::filesystem::directory_iterator walk(folder, error);",
    ),
    Statement(
        "The peer's own feature folder is skipped with a message: built-in features are always "
        "there.",
        "test_feature_classes.py::test_the_peers_own_feature_folder_is_skipped_with_a_message",
        FOLDERS,
        "if folder.parts[-3:] == _PEER_FEATURES:",
        "if False:",
    ),
    Statement(
        "A second `initialize` without `end_debug` is an error, and the first session goes on.",
        "SessionTest.a_second_initialize_is_an_error_and_the_first_session_goes_on",
        "hooks/debug.cpp",
        "if (process().session || process().begins) {",
        "if (process().begins) {",
    ),
    Statement(
        "A failed `initialize` leaves no session.",
        "SessionTest.a_failed_initialize_leaves_no_session",
        "hooks/debug.cpp",
        "  const auto session = std::make_shared<Session>(options, parts);",
        "  std::shared_ptr<Session> session;\n"
        "  try {\n"
        "    session = std::make_shared<Session>(options, parts);\n"
        "  } catch (const ConfigError&) {\n"
        "    process().session = std::make_shared<Session>(InitializeOptions{.log_dir = "
        "options.log_dir}, parts);\n"
        "    throw;\n"
        "  }",
    ),
    Statement(
        "A failed `initialize` forgets the feature classes of its `feature_dirs`.",
        "test_contract_session.py::test_a_failed_initialize_forgets_the_features_of_its_folders",
        SESSIONS,
        "        _forget_session_features()\n        raise",
        "        raise",
    ),
    Statement(
        "`step`, `end_debug` and `initialize_training_step` without a session do nothing.",
        "SessionTest.step_and_ends_without_a_session_do_nothing_and_other_calls_raise",
        "hooks/debug.cpp",
        "if (const auto session = open_session()) session->step(loss);",
        'session_for("step")->step(loss);',
    ),
    Statement(
        "All other functions without a session raise.",
        "test_debug_session.py::test_without_a_session_steps_do_nothing_and_other_calls_raise",
        "hooks/debug.cpp",
        'session_for("record")->record_scalar(name, value);',
        'if (open_session()) session_for("record")->record_scalar(name, value);',
    ),
    Statement(
        "`step()` ends an iteration; iterations count from `init_training_step`.",
        "SessionTest.iterations_count_from_init_training_step",
        "hooks/session/layer_listener.cpp",
        "const std::int64_t next = iteration() + 1;",
        "const std::int64_t next = iteration();",
    ),
    Statement(
        "`initialize_training_step(n)` sets the number of the running iteration, and wakes layers "
        "that wait for another one.",
        "RoutingTest.setting_the_iteration_wakes_a_sleeping_layer_also_backwards",
        "hooks/session/layer_listener.cpp",
        "  number_ = hook_points::install(this, iteration(), std::move(owner));",
        "  if (number_ == 0) number_ = hook_points::install(this, iteration(), std::move(owner));",
    ),
    Statement(
        "`end_debug()` hands over what was not stepped yet *(ours: the peer loses it)*.",
        "SessionTest.statistics_not_yet_stepped_are_flushed_by_end_debug",
        "hooks/session/session.cpp",
        "      deliver(take_recorded(statistics_->collect(iteration(), {}, Waiting::yes).rows));",
        "      nullptr;",
    ),
    Statement(
        "`list_features()` and `explain_features()` print on rank 0, and there alone.",
        "test_contract_session.py::test_features_are_listed_and_explained_on_rank_0_alone",
        SESSIONS,
        "    if ranks.rank() == 0:\n        print(text)",
        "    print(text)",
    ),
    Statement(
        '`explain_features` takes one name, several or `"all"`, each as '
        "`transformer_engine.FakeQuant` or bare; an unknown one is an error with the nearest name.",
        "SessionTest.features_are_listed_and_explained_by_either_name",
        "hooks/debug.cpp",
        "for (const auto& each : descriptions.all()) known.push_back(each->name);",
        "known.clear();",
    ),
    Statement(
        "`set_tensor_reduction_group(group, layer_name=None)` chooses the group of all layers, or "
        "of one *(ours: the peer ignores the name)*.",
        "test_distributed.py::test_statistics_of_ones_own_tensors_follow_the_groups",
        "hooks/session/reduction_groups.cpp",
        "const auto of_layer = of_layers_.find(layer_name);",
        "const auto of_layer = of_layers_.find(std::string_view{});",
    ),
    Statement(
        "`set_weight_tensor_tp_group_reduce(bool)`, True by default, decides whether the "
        "statistics of weights are reduced over their tensor-parallel group.",
        "test_distributed.py::test_a_weights_statistics_are_those_of_all_its_shards_if_so_wished",
        "hooks/session/reduction_groups.cpp",
        ".weights = reduce_weights_}",
        ".weights = true}",
    ),
    Statement(
        "`log_message` writes once per text, layer and extra arguments *(ours: the peer writes "
        "once per calling line, and loses other texts of that line)*.",
        "SessionTest.a_message_is_written_once_per_text_layer_and_extra_arguments",
        "hooks/session/text_log.cpp",
        'fmt::format("{}\\x1f{}", text, once_per)',
        "std::string(text)",
    ),
    Statement(
        "`statistics_logger` takes the place of `tb_writer`.",
        "SessionTest.a_statistics_logger_takes_the_place_of_a_tb_writer_and_the_file_can_be_added",
        "hooks/session/sink_fanout.cpp",
        "} else if (options.tb_writer) {",
        "}\n  if (options.tb_writer) {",
    ),
    Statement(
        "A logger or writer takes the place of the text file of statistics.",
        "SessionTest.loggers_get_rows_in_step_with_the_iteration_they_belong_to",
        "hooks/session/sink_fanout.cpp",
        "if (loggers.empty() || options.default_logging_enabled) {",
        "if (loggers.empty() || !options.default_logging_enabled) {",
    ),
    Statement(
        "`default_logging_enabled=True` writes the text file besides.",
        "SessionTest.a_statistics_logger_takes_the_place_of_a_tb_writer_and_the_file_can_be_added",
        "hooks/session/sink_fanout.cpp",
        "loggers.empty() || options.default_logging_enabled",
        "loggers.empty()",
    ),
    Statement(
        "The run file is written in any case *(ours)*.",
        "SessionTest.counters_come_with_any_statistic_but_only_what_was_asked_is_logged",
        "hooks/session/sink_fanout.cpp",
        "    if (!rows.empty()) run_file_.rows",
        "    if (dynamic_cast<StatisticsLog*>(loggers_.front().get()) != nullptr) run_file_.rows",
    ),
    Statement(
        "`with debug.session(...)` ends its session *(ours)*.",
        "test_debug_session.py::test_a_yaml_file_may_be_given_as_str_or_path",
        SESSIONS,
        "        yield\n    finally:\n        end_debug()",
        "        yield\n    finally:\n        pass",
    ),
    Statement(
        "`step(loss)` keeps the loss of the iteration that ends *(ours)*.",
        "test_contract_session.py::test_the_losses_of_step_are_kept_by_iteration",
        "hooks/session/session.cpp",
        "write_scalar(iteration, kLoss, loss);",
        "write_scalar(iteration + 1, kLoss, loss);",
    ),
    Statement(
        "A loss that is not finite is told in its step, whatever the configuration says *(ours)*.",
        "test_loss_not_finite.py::test_a_loss_that_is_not_finite_is_told_in_its_step",
        "hooks/session/loss_watch.cpp",
        "std::exchange(is_finite_, std::isfinite(loss))",
        "std::exchange(is_finite_, true)",
    ),
    Statement(
        "`record(name, value)` keeps a number of the running iteration *(ours)*.",
        "SessionTest.losses_and_own_values_are_recorded_with_the_iteration_that_was_seen",
        "hooks/session/session.cpp",
        "write_scalar(iteration(), name, value);",
        "write_scalar(iteration() + 1, name, value);",
    ),
    Statement(
        "`step(loss, lr=..., anything=...)` keeps further numbers of the iteration that ends "
        "*(ours)*.",
        "test_recorded_scalars.py::test_step_records_any_number_under_its_name",
        SESSIONS,
        '            _C.debug.record(name, arguments.number("debug.step", name, value))',
        '            arguments.number("debug.step", name, value)',
    ),
    Statement(
        "A misspelt `loss=` of a `step` without a loss is warned of *(ours)*.",
        "test_recorded_scalars.py::test_a_misspelt_loss_is_recorded_and_warned_of",
        SESSIONS,
        "            if loss is None and _looks_like_loss(name):",
        "            if False:",
    ),
    Statement(
        "`watch_optimizer(optimizer, every)` keeps `lr`, `grad_norm` and `update_to_weight` of an "
        "optimizer's steps *(ours)*.",
        "test_recorded_scalars.py::test_a_watched_optimizer_records_its_steps",
        "python/telens/debug/optimizers.py",
        "update / size",
        "update",
    ),
    Statement(
        "A run that SIGTERM ends says so, and in which iteration *(ours)*.",
        "test_broken_off_recording.py::"
        "test_a_run_that_sigterm_ended_says_so_and_in_which_iteration",
        "hooks/session/session.cpp",
        '  events_.mark(iteration(), "terminated", "SIGTERM", {});\n',
        "",
    ),
    Statement(
        "`plan(config, layer_names)` says what a configuration would do to layers of these names, "
        "and what it would record *(ours)*.",
        "test_plan.py::test_the_estimate_is_what_a_run_records",
        "features/log_stats/statistics_option.cpp",
        "  for (const StatisticId counter : counters_from(StatisticSource::tensor)) "
        "add({counter});\n",
        "",
    ),
    Statement(
        "`telens.open_run(path)` reads a run back as tables *(ours)*.",
        "test_debug_session.py::test_the_run_is_read_back_as_tables",
        "python/telens/run.py",
        "last_iteration=_INT64_MAX if last is None else last,",
        "last_iteration=_INT64_MAX,",
    ),
    Statement(
        '`recording={"max_size": bytes}` limits the files of a rank; below 16 MiB it ends the '
        "recording there, and nothing else *(ours)*.",
        "test_contract_session.py::test_max_size_ends_the_recording_and_not_the_training",
        "python/telens/debug/session_options.py",
        'return on_full == "block", max_size',
        'return on_full == "block", 0',
    ),
    Statement(
        "A `max_size` of 16 MiB and more thins the oldest iterations instead, and the run says so "
        "*(ours)*.",
        "Thinning.keeps_a_long_recording_below_max_size_and_what_is_left_exact",
        "features/record/segment_series.cpp",
        "if (after > share() && current_->file_size() > share() / 2) begin_next();",
        "if (after == 0) begin_next();",
    ),
    Statement(
        'A full queue drops the newest rows, which are counted; `recording={"on_full": "block"}` '
        "waits instead *(ours)*.",
        "RunWriter.on_full_block_loses_nothing",
        "features/record/run_writer_impl.cpp",
        "if (options_.on_full == OnFull::block && open() && available() < wanted.least) {",
        "if (false) {",
    ),
    Statement(
        "1,000 forwards of a layer without a `step()` are warned about, once *(ours)*.",
        "SessionTest.a_thousand_forwards_without_a_step_are_warned_about_once",
        "hooks/session/missing_steps.h",
        "constexpr int kForwardsBeforeWarning = 1000;",
        "constexpr int kForwardsBeforeWarning = 1002;",
    ),
    Statement(
        "A training that never calls `step()` is told so when the session ends; evaluations and a "
        "single forward are not *(ours)*.",
        "ForgottenStepTest.is_told_where_layers_ran_again_and_again",
        "hooks/session/missing_steps.cpp",
        "if (is_settled_ || forwards < 2) return std::nullopt;",
        "if (is_settled_ || forwards < 2000) return std::nullopt;",
    ),
    Statement(
        "A session that was left open is closed at the end of the process *(ours)*.",
        "SessionTest.a_session_left_open_is_closed_at_exit",
        "hooks/debug.cpp",
        "std::atexit(close_at_exit);",
        "static_cast<void>(close_at_exit);",
    ),
    Statement(
        "At the end of a Python program the loggers of an open session get its last values "
        "*(ours)*.",
        "test_debug_session.py::test_a_session_left_open_is_closed_at_exit_with_python_loggers",
        "python/telens/debug/exits.py",
        "atexit.register(_end_of_script, end)",
        "pass",
    ),
    Statement(
        "Sessions of one process share no files, messages or numbers of layers *(ours)*.",
        "SessionTest.sessions_in_sequence_share_no_files_messages_or_numbers_of_layers",
        "hooks/session/layer_listener.cpp",
        "if (automatic.session < first_number_) {",
        "if (automatic.name.empty()) {",
    ),
    Statement(
        "A model may outlive a session and is watched by the next one *(ours)*.",
        "RoutingTest.a_layer_without_features_wakes_up_in_the_next_session",
        "hooks/session/layer_listener.cpp",
        "hook_points::make_tick(number + 1, 0);",
        "hook_points::make_tick(number + 2, 0);",
    ),
    Statement(
        "A layer that was built before `initialize` is watched *(ours: the peer leaves it out "
        "silently)*.",
        "test_contract_session.py::test_a_layer_that_was_built_before_the_session_is_watched",
        "core/hook_points.cpp",
        "for (auto& tick : *sleeps) tick.store(1, std::memory_order_relaxed);",
        "for (auto& tick : *sleeps)\n"
        "        tick.store(hook_points::session_count == 0 ? ~0ULL : 1);",
    ),
    Statement(
        "A logger that throws is told once and not called again, and training goes on *(ours: "
        "there the exception passes through)*.",
        "SessionTest.a_logger_that_throws_is_told_once_and_not_called_again",
        "hooks/session/sink_fanout.cpp",
        "if (std::erase(loggers_, logger) == 0) continue;",
        "if (false) continue;",
    ),
)
