"""Finding causes: Diagnosis during a training, and the subcommands of telens."""

from statement import Statement

ONLINE = "test_online_diagnosis.py::"
SERVE = "test_serve.py::"
QUIET = "test_diagnose_quiet.py::"

STATEMENTS = (
    Statement(
        "Diagnosis *(ours)* reports each finding once, with the words and numbers of `telens "
        "diagnose`.",
        "LiveLookTest.reports_findings_once_like_the_command",
    ),
    Statement(
        "A resumed run does not report findings that ended before it.",
        "LiveLookTest.ignores_problems_that_ended_before_the_session",
    ),
    Statement(
        "`checkpoint_allowed()` is False while a finding exists that the configuration vetoes.",
        ONLINE + "test_wrong_scale_is_reported_during_training",
    ),
    Statement(
        "A run that cannot be read ends the diagnosis, not the training.",
        "OnlineDiagnosisTest.a_run_that_is_not_recorded_ends_it_and_not_the_training",
    ),
    Statement(
        "`telens diagnose` ends with exit code 1 if it finds something or the program failed, else "
        "with 0.",
        "test_diagnose.py::test_a_person_reads_it_in_a_hundred_columns",
    ),
    Statement(
        "`telens diagnose` names a layer that no backward pass reaches, and the first such "
        "iteration.",
        QUIET + "test_a_layer_that_no_backward_pass_reaches",
    ),
    Statement(
        "Frozen blocks at the front of a model, and models without training, are not reported.",
        QUIET + "test_whole_blocks_at_the_front_may_be_frozen_on_purpose",
    ),
    Statement(
        "`telens diagnose` does not recommend a recipe that the recorded values speak against.",
        QUIET + "test_recipe_is_recommended_by_whatif_loss",
    ),
    Statement(
        "`telens diff` names the place and the iteration at which two runs first diverge.",
        "test_diff.py::test_planted_layer_precedes_consequences",
    ),
    Statement(
        "A difference that a third run with another seed also has is chance.",
        "test_diff.py::test_a_spread_as_large_as_the_difference_is_chance",
    ),
    Statement(
        "The page of `telens report` does not access the network.",
        "test_report.py::test_the_page_asks_no_network",
    ),
    Statement(
        "`telens watch` prints each finding once to a pipe.",
        "test_watch.py::test_a_pipe_gets_lines_and_each_finding_once",
    ),
    Statement(
        "`telens watch` restores the terminal at Ctrl-C.",
        "test_watch.py::test_ctrl_c_gives_the_terminal_back",
    ),
    Statement(
        "`telens serve` answers nothing without the token of its address.",
        SERVE + "test_request_without_token_is_rejected",
    ),
    Statement(
        "`telens serve` listens only on the local machine.",
        SERVE + "test_server_listens_only_on_loopback",
    ),
    Statement(
        "A killed `telens bisect` continues where it stopped, and repeats no run.",
        "test_bisect.py::test_killed_search_continues",
    ),
    Statement(
        "`telens replay` splits the error of a GEMM into parts that add up to it within the "
        "rounding of FP64.",
        "test_replay.py::test_parts_that_do_not_add_up_are_an_error",
    ),
)
