// How a file of a run stands, in words.
#pragma once

#include <optional>
#include <string>

#include "features/record/run_reader.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {

// Seconds since 1970 as "2026-01-31 23:59:59 UTC".
std::string time_text(double seconds);

struct RunState {
  std::string text;  // "being written", "ended cleanly 2026-01-31 23:59:59 UTC"
  std::optional<Colour> colour = std::nullopt;
};
RunState state_of(const record::Segment& segment);
// That of a file that is being written, else of the last one.
RunState state_of(const record::RunReader& run);
// The same, in color on a terminal.
std::string state_text(const record::Segment& segment);

}  // namespace telens::cli
