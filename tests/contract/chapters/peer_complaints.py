"""What users of the peer complain about, and what must not be true here."""

from statement import Statement

STATEMENTS = (
    Statement(
        "FakeQuant and the FP8 statistics need no GPU.",
        "test_contract_features.py::test_a_recipe_before_a_statistic_asks_what_it_would_have_done",
        "core/kernels/cpu/statistics/statistics.cpp",
        'TORCH_LIBRARY_IMPL(telens, CPU, library) {\n  library.impl("statistics"',
        'TORCH_LIBRARY_IMPL(telens, CUDA, library) {\n  library.impl("statistics"',
    ),
    Statement(
        "All statistics of a tensor, of however many features, come from one read of it.",
        "OnePassTest.features_share_one_read_of_each_tensor_and_one_of_its_amax",
        "features/engine/accumulators.cpp",
        "  ops::accumulate_statistics(x, casts, sums);",
        "  ops::accumulate_statistics(x.new_empty({0}), casts, sums);\n"
        "  ops::accumulate_statistics(x, casts, sums);",
    ),
    Statement(
        "A tensor that nobody asks about is not read.",
        "OnePassTest.a_tensor_that_nobody_asks_about_is_not_read",
        "hooks/scheduled_feature.cpp",
        "return !tensor || !selection.tensor || *selection.tensor == get_name(*tensor);",
        "return true;",
    ),
    Statement(
        "One collective a group and step: sums travel behind a header, in a gather of their own "
        "only where they have grown.",
        "RankExchange.messages_that_do_not_grow_travel_behind_the_headers",
        "features/engine/rank_exchange.cpp",
        "  room.note(longest);\n",
        "",
    ),
    Statement(
        "Ranks need not log the same layers: no collective hangs.",
        "RankExchange.ranks_that_log_different_layers_or_none_do_not_hang",
        "features/engine/rank_exchange.cpp",
        "same_keys ? message.words : with_index(message, longest)",
        "(same_keys || true) ? message.words : with_index(message, longest)",
    ),
    Statement(
        "Small values do not read 0: the run file holds them in full, and can be queried.",
        "test_debug_session.py::test_the_run_is_read_back_as_tables",
        "python/telens/run.py",
        "search = re.compile(pattern).search",
        'search = re.compile(pattern + "_").search',
    ),
    Statement(
        "FakeQuant takes the MXFP8 formats, without a GPU.",
        "test_fake_quant.py::test_each_gemm_gets_the_operands_of_the_reference",
        "features/fake_quant/fake_quant_options.cpp",
        "made.push_back({format_name(recipe, element), {element, blocks}});",
        "made.push_back({format_name(recipe, element), {get_elements(recipe)[0], blocks}});",
    ),
    Statement(
        "`layer_numbers: 3` and `5-8` work.",
        "LayerSelector.numbers_may_be_one_number_a_list_or_ranges",
        "hooks/config/layer_selector.cpp",
        "  if (value.is_integer() && value.as_integer() >= 0) {",
        "  if (value.is_integer() && value.as_integer() < 0) {",
    ),
    Statement(
        "A misspelt key is found when the file is loaded.",
        "FeatureMistakes.are_named_with_their_place",
        "hooks/config/selection.cpp",
        "} else if (std::ranges::find(known, entry.key) == known.end()) {",
        "} else if (false) {",
    ),
    Statement(
        "Two features on one tensor do not disturb each other's schedule.",
        "RoutingTest.each_observer_runs_in_its_own_iterations_only",
        "hooks/session/layer_routing.cpp",
        "  if (!question.due(iteration)) return;\n",
        "",
    ),
    Statement(
        "A second session of a process logs into files of its own.",
        "test_against_peer.py::test_the_second_session_logs_into_files_of_its_own",
        "hooks/session/sink_fanout.cpp",
        "    loggers.push_back(std::make_shared<StatisticsLog>(options.log_dir, options.rank));",
        "    static const auto first = std::make_shared<StatisticsLog>(options.log_dir, "
        "options.rank);\n    loggers.push_back(first);",
    ),
    Statement(
        "Nothing grows with the iterations: what was handed over is let go of.",
        "test_contract_memory.py::test_a_long_session_grows_by_nothing",
        "features/engine/layer_reads.cpp",
        "  open_.erase(complete, open_.end());\n",
        "",
    ),
)
