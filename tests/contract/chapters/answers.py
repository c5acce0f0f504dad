"""What finds causes: Diagnosis while a training goes on, and subcommands of telens."""

from statement import Statement

ONLINE = "test_online_diagnosis.py::"
SERVE = "test_serve.py::"

STATEMENTS = (
    Statement(
        "Diagnosis *(ours)* tells each finding once, with the words and numbers of "
        "`telens diagnose`.",
        "LiveLookTest.tells_a_finding_once_and_as_the_command_does",
        "features/diagnosis/live_look.cpp",
        "if (is_new && action >= least) strongest",
        "if ((is_new && action >= least) || action == Action::tell) strongest",
    ),
    Statement(
        "A resumed run hears nothing of what was over before.",
        "LiveLookTest.tells_nothing_that_ended_before_the_session",
        "features/diagnosis/live_look.cpp",
        "if (finding.last < seen.since) return false;",
        "if (finding.last < seen.since && finding.last < 0) return false;",
    ),
    Statement(
        "`checkpoint_allowed()` is False while there is what the configuration vetoes.",
        ONLINE + "test_a_wrong_scale_is_told_while_the_training_goes_on",
        "features/online_diagnosis/online_diagnosis.cpp",
        "return !(is_alone() ? board_->vetoes() : all_ranks_veto_.load());",
        "return !(is_alone() ? board_->vetoes() : all_ranks_veto_.load()) || true;",
    ),
    Statement(
        "A run that cannot be read ends the looks, not the training.",
        "OnlineDiagnosisTest.a_run_that_is_not_recorded_ends_it_and_not_the_training",
        "features/online_diagnosis/finding_board.cpp",
        "    is_off_ = true;\n    news_.failure = error.what();\n    return;\n",
        "    is_off_ = true;\n    news_.failure = error.what();\n    throw;\n",
    ),
    Statement(
        "`telens serve` answers nothing without the token of its address.",
        SERVE + "test_without_its_token_nothing_is_answered",
        "inspector_cli/serve/loopback_server.cpp",
        'if (!same_secret(request.get_param_value("token"), token_)) {',
        'if (request.get_param_value("token").empty()) {',
    ),
    Statement(
        "It listens to this machine alone.",
        SERVE + "test_it_listens_to_this_machine_alone",
        "inspector_cli/serve/loopback_server.cpp",
        'kAddress = "127.0.0.1";',
        'kAddress = "0.0.0.0";',
    ),
    Statement(
        "`telens bisect` that was killed goes on where it was, and repeats no run.",
        "test_bisect.py::test_a_killed_search_goes_on_where_it_was",
        "inspector_cli/bisect/trials.cpp",
        "if (known != trials_.end()) return *known;",
        "if (known != trials_.end() && config.empty()) return *known;",
    ),
    Statement(
        "`telens replay` splits the error of a GEMM into parts that add up to it within the "
        "rounding of FP64.",
        "test_replay.py::test_parts_that_do_not_add_up_are_an_error",
        "python/telens/replay/gemm_error.py",
        "if bool((unexplained > split.bound).any()):",
        "if bool((unexplained < 0).any()):",
    ),
)
