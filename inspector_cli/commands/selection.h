// The argument RUN and the options that select records.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <vector>

#include "record/run_reader.h"

namespace telens::cli {

struct Selection {
  std::string layer;  // a regular expression, searched
  std::vector<std::string> tensors;
  std::vector<std::string> gemms;
  std::vector<std::string> statistics;
  std::string iterations;  // "a:b", both inclusive, either may be missing; or one number
  std::optional<int> rank;
};

inline constexpr const char* kRunDoc =
    "A run's folder, one of its .h5 files, or a log_dir (its newest run)";

// The required argument RUN.
void add_run(CLI::App& command, std::string& run);

void add_layer_option(CLI::App& command, std::string& layer);
void add_iterations_option(CLI::App& command, std::string& iterations);
void add_rank_option(CLI::App& command, std::optional<int>& rank);
// All of them, and --tensor, --gemm and --stat.
void add_selection(CLI::App& command, Selection& selection);
// Without --gemm and --stat.
void add_tensor_selection(CLI::App& command, Selection& selection);

// Throws UsageError where the run has no file of that rank.
void check_rank(const std::optional<int>& rank, const record::RunReader& run);

// Throws UsageError for what the run does not have, with the nearest names that it has.
record::RecordQuery resolve(const Selection& selection, const record::RunReader& run);

// The selection's histograms, of whichever kind. UsageError, which names the run's path, if it has
// none at all.
record::RecordQuery histogram_query(const Selection& selection, const record::RunReader& run,
                                    const std::string& path);

}  // namespace telens::cli
