// Shows results of analysis/: tables that several subcommands or pages have, and colors.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "analysis/run_state.h"
#include "analysis/tensor_summary.h"
#include "inspector_cli/terminal/table.h"
#include "inspector_cli/terminal/terminal.h"
#include "record/run_reader.h"

namespace telens::cli {

// Returns one row per block: at most `most` blocks per statistic, or all if `most` is 0.
Table block_table(const std::vector<analysis::WorstBlock>& blocks, const record::RunReader& run,
                  std::size_t most);

// Returns the table of `telens stats --by rank`: one row for each statistic, tensor and rank.
Table rank_table(const record::RunReader& run, const record::RecordQuery& query);

// Returns nullopt for a clean end.
std::optional<Color> get_color(analysis::Condition condition);
// Returns the state of a file, in color on a terminal.
std::string state_text(const record::Segment& segment);

}  // namespace telens::cli
