// The view of a growing run that `telens watch` shows: findings, loss, worst tensors.
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
  std::string summary;  // both are printable
};

struct RunView {
  std::string id;
  analysis::RunState state;
  bool ended = false;  // see has_ended()
  std::optional<std::int64_t> last_iteration = std::nullopt;
  std::vector<diagnosis::Point> losses = {};  // of the lowest rank that has losses
  std::vector<ViewedFinding> findings = {};
  std::string no_finding;  // the sentence to show if nothing was found
  Table worst;             // the worst tensor first
};

// Returns true if every file is closed or its process has ended.
bool has_ended(const record::RunReader& run);

// Reads the whole run. Throws RecordError.
RunView make_view(const record::RunReader& run);

struct FrameLine {
  std::string text;  // printable, or a table line with colors
  std::optional<Color> color = std::nullopt;
};

// Returns at most `rows` lines of at most `width` columns, except for tables with longer words.
// `name` is the run's name in suggested commands.
std::vector<FrameLine> make_frame(const RunView& view, const std::string& name, std::size_t width,
                                  std::size_t rows);

// Returns "iteration 120, loss 2.31", or "nothing yet".
std::string progress_text(const RunView& view);

// Returns the values as at most `width` block characters, `!` for non-finite values. A character
// shows the largest of its values.
std::string sparkline(const std::vector<diagnosis::Point>& points, std::size_t width);

// The smallest and the largest finite value.
struct Range {
  double low = 0;
  double high = 0;
};
Range finite_range(const std::vector<diagnosis::Point>& points);
// Like sparkline() on a given scale, for several lines that are compared.
std::string sparkline(const std::vector<diagnosis::Point>& points, std::size_t width,
                      const Range& scale);

}  // namespace telens::cli
