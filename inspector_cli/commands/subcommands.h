// The subcommands of `telens`. Each function adds a subcommand with its options and callback.
// main.cpp turns an exception of the callback into one line on stderr and exit code 2.
#pragma once

#include <CLI/App.hpp>

namespace telens::cli {

// Thrown after the output if a subcommand found problems in a run. The exit code is 1.
class FindingsReported {};

void add_info(CLI::App& app);
void add_stats(CLI::App& app);
void add_plot(CLI::App& app);
void add_repair(CLI::App& app);
void add_export(CLI::App& app);
void add_plan(CLI::App& app);
void add_features(CLI::App& app);
void add_new_plugin(CLI::App& app);
void add_whatif(CLI::App& app);
void add_ledger(CLI::App& app);
void add_blocks(CLI::App& app);
void add_advise(CLI::App& app);
void add_diagnose(CLI::App& app);
void add_diff(CLI::App& app);
void add_replay(CLI::App& app);
void add_report(CLI::App& app);
void add_bisect(CLI::App& app);
void add_watch(CLI::App& app);
void add_serve(CLI::App& app);
void add_mcp(CLI::App& app);
void add_run_training(CLI::App& app);

}  // namespace telens::cli
