// A run while it is being written, as `telens watch` shows it: findings, loss, worst tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "analysis/run_state.h"
#include "analysis/series.h"
#include "inspector_cli/terminal/table.h"
#include "inspector_cli/terminal/terminal.h"
#include "record/run_reader.h"

namespace telens::cli {

struct ViewedFinding {
  std::string head;     // "overflow: layers.3.fc1 activation, since iteration 12"
  std::string summary;  // printable, as the head
};

struct RunView {
  std::string id;
  analysis::RunState state;
  bool ended = false;  // see has_ended()
  std::optional<std::int64_t> last_iteration = std::nullopt;
  std::vector<diagnosis::Point> losses = {};  // the lowest rank's that has any
  std::vector<ViewedFinding> findings = {};
  std::string no_finding;  // a sentence for that case
  Table worst;             // tensors, the worst first
};

// True if every file is closed, or its process is gone.
bool has_ended(const record::RunReader& run);

// Reads all of the run. Throws RecordError.
RunView make_view(const record::RunReader& run);

struct FrameLine {
  std::string text;  // printable, or a table's with colors
  std::optional<Color> color = std::nullopt;
};

// At most `rows` lines of at most `width` columns, but for a table of longer words. `name` is how
// the user calls the run.
std::vector<FrameLine> make_frame(const RunView& view, const std::string& name, std::size_t width,
                                  std::size_t rows);

// "iteration 120, loss 2.31"; "nothing yet".
std::string progress_text(const RunView& view);

// The values in at most `width` characters, low to high; `!` for one that is not finite. Several
// that share a character show the largest.
std::string sparkline(const std::vector<diagnosis::Point>& points, std::size_t width);

}  // namespace telens::cli
