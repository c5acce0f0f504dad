#include "inspector_cli/report/run_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <sstream>
#include <utility>

#include "analysis/diagnosis.h"
#include "analysis/events.h"
#include "analysis/facts.h"
#include "analysis/findings.h"
#include "analysis/rules.h"
#include "analysis/series.h"
#include "analysis/tensor_summary.h"
#include "core/base/text.h"
#include "inspector_cli/report/analysis_display.h"
#include "inspector_cli/terminal/text.h"

namespace telens::cli {
namespace {

using analysis::get_state;
using analysis::name_or_empty;
using analysis::read_losses;
using analysis::TensorSummaries;
using analysis::TensorSummary;
using analysis::WarmUp;

using diagnosis::Point;

constexpr std::size_t kMostTensors = 50;
constexpr std::size_t kRowsBesideFindings = 12;  // head, loss, blanks and a short table
constexpr std::string_view kIndent = "   ";

Cell cell(const std::optional<double>& value) { return value ? Cell(*value) : Cell(); }

Table worst_tensors(const record::RunReader& run) {
  const WarmUp warm_up(run);
  TensorSummaries summaries(run, warm_up);
  run.read({}, [&](int, std::span<const record::Record> records) {
    for (const record::Record& each : records) summaries.add(each);
  });
  const auto name = [&run](record::Dictionary dictionary, std::int32_t id) {
    return name_or_empty(run, dictionary, id);
  };
  Table table({"layer", "tensor", "gemm", "underflows %", "overflows %", "amax", "nonfinite"});
  for (const TensorSummary& each : summaries.worst_first()) {
    if (table.size() == kMostTensors) break;
    if (!each.recipe.empty()) continue;  // a what-if, not part of the training
    table.add({name(record::Dictionary::layer, each.layer),
               name(record::Dictionary::tensor, each.tensor),
               name(record::Dictionary::gemm, each.gemm), cell(each.underflows),
               cell(each.overflows), cell(each.amax), cell(each.nonfinite)});
  }
  for (const char* column : {"gemm", "underflows %", "overflows %", "nonfinite"}) {
    table.drop_where_empty(column);
  }
  return table;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Collects lines, each of at most `width` columns.
class Frame {
 public:
  explicit Frame(std::size_t width) : width_(std::max<std::size_t>(width, 1)) {}

  // Adds the first line of the wrapped text.
  void add(const std::string& text, std::optional<Color> color = std::nullopt) {
    const std::vector<std::string> pieces = wrapped(text, width_);
    lines_.push_back({pieces.empty() ? "" : pieces.front(), color});
  }
  void add_all(std::string_view indent, const std::string& text) {
    const std::size_t room = width_ > 2 * indent.size() ? width_ - indent.size() : width_;
    for (const std::string& line : wrapped(text, room)) {
      add(room < width_ ? std::string(indent) + line : line);
    }
  }
  // Adds a line that is already wrapped and colored.
  void add_table_line(const std::string& line) { lines_.push_back({line}); }
  std::size_t size() const { return lines_.size(); }
  std::vector<FrameLine> lines() && { return std::move(lines_); }

 private:
  std::size_t width_;
  std::vector<FrameLine> lines_;
};

void add_findings(Frame& frame, const RunView& view, const std::string& name, std::size_t room) {
  if (view.findings.empty()) {
    frame.add(view.no_finding, Color::dim);
    return;
  }
  for (std::size_t i = 0; i < view.findings.size(); ++i) {
    if (i > 0 && frame.size() + 1 >= room) {
      frame.add(fmt::format("and {} more: telens diagnose {}", view.findings.size() - i,
                            printable(shell_word(name))));
      return;
    }
    frame.add(fmt::format("{}. {}", i + 1, view.findings[i].head), Color::yellow);
    frame.add_all(kIndent, view.findings[i].summary);
  }
}

}  // namespace

bool has_ended(const record::RunReader& run) {
  return std::ranges::none_of(run.segments(), &record::Segment::live);
}

RunView make_view(const record::RunReader& run) {
  const diagnosis::Facts facts(run, diagnosis::statistics_of_rules());
  const diagnosis::Diagnosis found = diagnosis::diagnose(facts);
  const auto& segments = run.segments();
  RunView view{.id = printable(segments.empty() ? "" : segments.front().run_id),
               .state = {},
               .no_finding = "",
               .worst = worst_tensors(run)};
  view.ended = has_ended(run);
  view.state = get_state(run);
  view.losses = read_losses(run);
  if (found.first_iteration <= found.last_iteration) view.last_iteration = found.last_iteration;
  if (!view.losses.empty()) {
    view.last_iteration = std::max(view.last_iteration.value_or(0), view.losses.back().iteration);
  }
  for (const diagnosis::Ranked& each : found.findings) {
    view.findings.push_back({fmt::format("{}: {}, since iteration {}", each.finding.cause,
                                         make_label(each.finding.place, facts), each.finding.first),
                             printable(each.finding.summary)});
  }
  view.no_finding =
      fmt::format("no problems found ({} of {} rules checked)", found.checked, found.applicable());
  return view;
}

std::string progress_text(const RunView& view) {
  if (!view.last_iteration) return "nothing yet";
  std::string text = fmt::format("iteration {}", *view.last_iteration);
  if (!view.losses.empty()) text += ", loss " + number_text(view.losses.back().value, 5);
  return text;
}

Range finite_range(const std::vector<Point>& points) {
  Range range{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  for (const Point& each : points) {
    if (!std::isfinite(each.value)) continue;
    range.low = std::min(range.low, each.value);
    range.high = std::max(range.high, each.value);
  }
  return range;
}

std::string sparkline(const std::vector<Point>& points, std::size_t width) {
  return sparkline(points, width, finite_range(points));
}

std::string sparkline(const std::vector<Point>& points, std::size_t width, const Range& scale) {
  constexpr std::array<std::string_view, 8> kLevels{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const auto [low, high] = scale;
  const std::size_t count = std::min(width, points.size());
  std::string line;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t end = (i + 1) * points.size() / count;
    double largest = -std::numeric_limits<double>::infinity();
    bool finite = true;
    for (std::size_t at = i * points.size() / count; at < end; ++at) {
      finite = finite && std::isfinite(points[at].value);
      largest = std::max(largest, points[at].value);
    }
    if (!finite) {
      line += '!';
      continue;
    }
    // Halves prevent overflow: the range of two finite numbers may be infinite.
    const double range = high / 2 - low / 2;
    const double part = range > 0 ? (largest / 2 - low / 2) / range : 0;
    line += kLevels[static_cast<std::size_t>(std::lround(part * (kLevels.size() - 1)))];
  }
  return line;
}

std::vector<FrameLine> make_frame(const RunView& view, const std::string& name, std::size_t width,
                                  std::size_t rows) {
  Frame frame(width);
  frame.add(fmt::format("{}  {}", progress_text(view), view.id), Color::bold);
  frame.add(printable(view.state.text), get_color(view.state.condition));
  if (!view.losses.empty()) {
    constexpr std::string_view kName = "loss ";
    frame.add(fmt::format("{}{}", kName,
                          sparkline(view.losses, width > kName.size() ? width - kName.size() : 1)));
  }
  frame.add("");
  add_findings(frame, view, name, rows > kRowsBesideFindings ? rows - kRowsBesideFindings / 2 : 5);
  if (view.worst.size() > 0) {
    frame.add("");
    frame.add("worst tensors", Color::bold);
    Table table = view.worst;
    const std::size_t used = frame.size() + 2;  // its heading and a possible remark below
    table.keep_first(rows > used + 1 ? rows - used - 1 : 1);
    for (const std::string& line : split_lines(table.render(Format::table, width))) {
      frame.add_table_line(line);
    }
  }
  std::vector<FrameLine> lines = std::move(frame).lines();
  if (lines.size() > rows) lines.resize(rows);
  return lines;
}

}  // namespace telens::cli
