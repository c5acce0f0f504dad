"""Complaints of users of Transformer Engine, which must not apply to TELens."""

from statement import Statement

STATEMENTS = (
    Statement(
        "FakeQuant and the FP8 statistics need no GPU.",
        "test_contract_features.py::test_recipe_prefix_selects_whatif_statistics",
    ),
    Statement(
        "All statistics of a tensor, of however many features, come from one read of it.",
        "OnePassTest.features_share_one_read_and_one_amax_per_tensor",
    ),
    Statement(
        "A tensor without a requested statistic is not read.",
        "OnePassTest.a_tensor_that_nobody_asks_about_is_not_read",
    ),
    Statement(
        "Each group takes one collective per step: sums follow a header, with a separate gather "
        "only if they have grown.",
        "RankExchange.messages_that_do_not_grow_follow_the_headers",
    ),
    Statement(
        "Ranks need not log the same layers: no collective hangs.",
        "RankExchange.ranks_that_log_different_layers_or_none_do_not_hang",
    ),
    Statement(
        "Small values are not shown as 0: the run file stores them in full, and can be queried.",
        "test_debug_session.py::test_the_run_is_read_back_as_tables",
    ),
    Statement(
        "FakeQuant takes the MXFP8 formats, without a GPU.",
        "test_fake_quant.py::test_each_gemm_gets_the_operands_of_the_reference",
    ),
    Statement(
        "`layer_numbers: 3` and `5-8` work.",
        "LayerSelector.numbers_may_be_one_number_a_list_or_ranges",
    ),
    Statement(
        "A misspelt key is found when the file is loaded.",
        "FeatureMistakes.are_named_with_their_place",
    ),
    Statement(
        "Two features on one tensor do not disturb each other's schedule.",
        "RoutingTest.each_observer_runs_in_its_own_iterations_only",
    ),
    Statement(
        "A second session of a process logs to separate files.",
        "test_against_peer.py::test_second_session_logs_to_new_files",
    ),
    Statement(
        "Memory does not grow with the iterations: data is released once it is passed on.",
        "test_contract_memory.py::test_a_long_session_grows_by_nothing",
    ),
)
