// The subcommands of `telens`. Each declares its options and what it does when it is chosen; an
// exception from it becomes one line on stderr and exit code 2 in main.cpp.
#pragma once

#include <CLI/App.hpp>

namespace telens::cli {

// Thrown after its output by a command that judges a run, and judged it badly: exit code 1.
class FindingsReported {};

void add_info(CLI::App& app);
void add_stats(CLI::App& app);
void add_plot(CLI::App& app);
void add_repair(CLI::App& app);
void add_plan(CLI::App& app);
void add_features(CLI::App& app);
void add_new_plugin(CLI::App& app);
void add_whatif(CLI::App& app);
void add_ledger(CLI::App& app);
void add_blocks(CLI::App& app);
void add_diagnose(CLI::App& app);
void add_diff(CLI::App& app);
void add_replay(CLI::App& app);
void add_report(CLI::App& app);
void add_bisect(CLI::App& app);
void add_watch(CLI::App& app);
void add_serve(CLI::App& app);

}  // namespace telens::cli
