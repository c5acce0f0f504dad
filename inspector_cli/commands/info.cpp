// telens info: a summary of a run, its contents, status and first problems.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/events.h"
#include "analysis/rank_ends.h"
#include "analysis/run_state.h"
#include "analysis/series.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "inspector_cli/commands/options.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/report/analysis_display.h"
#include "inspector_cli/report/first_trouble.h"
#include "inspector_cli/report/open_run.h"
#include "inspector_cli/terminal/terminal.h"
#include "inspector_cli/terminal/text.h"

namespace telens::cli {
namespace {

using analysis::get_event_text;
using analysis::get_state;
using analysis::list_events;
using analysis::list_rank_ends;
using analysis::RunState;
using analysis::time_text;
using analysis::WarmUp;

using record::Dictionary;
using record::Segment;

constexpr int kInfoSchema = 1;

struct InfoOptions {
  std::string run;
  Format format = Format::table;
  bool config = false;
  bool environment = false;
  bool events = false;
};

std::string size_text(std::uint64_t bytes) {
  constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB"};
  auto size = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; size >= 1024 && unit + 1 < units.size(); ++unit) size /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", size, units[unit]);
}

constexpr std::size_t kNameWidth = 12;

void line(std::string_view name, const std::string& text) {
  fmt::print("{} {}\n", colored(fmt::format("{:<{}}", name, kNameWidth), Color::dim), text);
}

// Prints a named text. On a terminal, further lines are indented.
void paragraph(std::string_view name, const std::string& text,
               std::optional<Color> color = std::nullopt) {
  const auto width = stdout_is_terminal() ? static_cast<std::size_t>(terminal_width()) : SIZE_MAX;
  const std::size_t room = width > 2 * kNameWidth ? width - kNameWidth - 1 : width;
  for (const std::string& part : wrapped_at_blanks(printable(text), room)) {
    line(name, color ? colored(part, *color) : part);
    name = "";
  }
}

std::string counted(std::size_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

// The files that one process wrote in sequence, as one.
struct Recording {
  Segment all;  // path of the first file, end of the last one
  std::size_t files = 1;
  record::Thinned thinned;

  explicit Recording(const Segment& first)
      : all(first), thinned(first.thinned.value_or(record::Thinned{})) {}

  void add(const Segment& next) {
    ++files;
    all.end = next.end;
    all.live = next.live;
    all.bytes += next.bytes;
    if (all.records == 0) all.first_iteration = next.first_iteration;
    if (next.records > 0) all.last_iteration = next.last_iteration;
    all.records += next.records;
    all.dropped += next.dropped;
    all.lost += next.lost;
    if (!next.thinned) return;
    thinned.iterations_left += next.thinned->iterations_left;
    thinned.iterations_seen += next.thinned->iterations_seen;
  }
};

std::vector<Recording> list_recordings(const record::RunReader& run) {
  std::vector<Recording> recordings;
  for (const Segment& segment : run.segments()) {
    if (segment.continues && !recordings.empty() && recordings.back().all.rank == segment.rank) {
      recordings.back().add(segment);
    } else {
      recordings.emplace_back(segment);
    }
  }
  return recordings;
}

void print_files(const record::RunReader& run) {
  for (const auto& [segment, files, thinned] : list_recordings(run)) {
    const std::string more =
        files > 1 ? fmt::format(" and {}", counted(files - 1, "more file")) : "";
    std::string text = fmt::format("{}{}  {}, {} records", printable(segment.path), more,
                                   size_text(segment.bytes), segment.records);
    if (segment.records > 0) {
      text += fmt::format(", iterations {} to {}", segment.first_iteration, segment.last_iteration);
    }
    if (segment.superseded_from <= segment.last_iteration && segment.records > 0) {
      text += fmt::format(" (from {} on superseded after a restart)", segment.superseded_from);
    }
    line("file", text);
    const RunState state = get_state(segment);
    paragraph("", state.text, get_color(state.condition));
    if (thinned.iterations_seen > 0) {
      paragraph("",
                fmt::format("thinned to fit max_size: {} of the first {} iterations are kept",
                            thinned.iterations_left, thinned.iterations_seen),
                Color::yellow);
    }
    if (segment.dropped > 0) {
      paragraph("",
                fmt::format("incomplete: {} rows dropped because the disk was too slow or the "
                            "file was removed",
                            segment.dropped),
                Color::red);
    }
    if (segment.lost > 0) {
      paragraph(
          "",
          fmt::format("incomplete: {} rows lost because writes to the disk failed", segment.lost),
          Color::red);
    }
  }
}

// Prints how the ranks ended if there are several, the first one first, and which ranks are
// missing.
void print_ranks(const record::RunReader& run) {
  constexpr std::size_t kMostEnds = 4;
  std::vector<std::string> ends;
  if (run.segments().size() > 1) ends = describe(list_rank_ends(run), run);
  const std::size_t more = ends.size() - std::min(ends.size(), kMostEnds);
  ends.resize(ends.size() - more);
  if (more > 0) ends.push_back(fmt::format("and {} (see below)", counted(more, "more rank")));
  std::string_view name = "ended";
  for (const std::string& each : ends) {
    paragraph(name, each, Color::yellow);
    name = "";
  }
  for (const std::string& each : diagnosis::missing_rank_notes(run)) {
    paragraph("ranks", each, Color::yellow);
  }
}

// Returns "mean, tail%", shortened to the first names and a count.
std::string list_first(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 12;
  const std::size_t shown = names.size() > kMost + 1 ? kMost : names.size();
  const std::vector<std::string> first(names.begin(),
                                       names.begin() + static_cast<std::ptrdiff_t>(shown));
  const std::size_t more = names.size() - shown;
  return fmt::format("{}{}", fmt::join(first, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : std::string());
}

void print_totals(const record::RunReader& run) {
  std::uint64_t bytes = 0;
  for (const Segment& segment : run.segments()) bytes += segment.bytes;
  const std::uint64_t records = run.record_count();
  line("records", records == 0
                      ? std::string("none")
                      : fmt::format("{}, {:.1f} bytes each", records,
                                    static_cast<double>(bytes) / static_cast<double>(records)));
  const auto& statistics = run.names(Dictionary::statistic);
  paragraph("watched",
            fmt::format("{}, {}, {}{}{}", counted(run.names(Dictionary::layer).size(), "layer"),
                        counted(run.names(Dictionary::tensor).size(), "tensor"),
                        counted(statistics.size(), "statistic"), statistics.empty() ? "" : ": ",
                        list_first(statistics)));
}

struct ScalarSummary {
  record::Scalar first, last;
};

// Returns the scalars of the lowest rank by name.
std::map<std::int32_t, ScalarSummary> summarize_scalars(const record::RunReader& run) {
  std::map<std::int32_t, ScalarSummary> summaries;
  for (const record::Scalar& scalar : run.scalars()) {
    if (scalar.rank != run.segments().front().rank) continue;
    summaries.try_emplace(scalar.name, ScalarSummary{scalar, scalar}).first->second.last = scalar;
  }
  return summaries;
}

void print_scalars(const record::RunReader& run) {
  for (const auto& [name, summary] : summarize_scalars(run)) {
    line(printable(run.names(Dictionary::word)[name]),
         fmt::format("{} at iteration {}, {} at {}", number_text(summary.first.value, 6),
                     summary.first.iteration, number_text(summary.last.value, 6),
                     summary.last.iteration));
  }
}

// Prints events by kind, so that many events of the same kind do not hide another kind.
void print_events(const record::RunReader& run, bool all) {
  constexpr std::size_t kShownFirst = 2;  // and the last one
  for (const auto& [kind, events] : list_events(run, all)) {
    for (std::size_t i = 0; i < events.size(); ++i) {
      const std::size_t hidden = events.size() - i - 1;
      if (!all && i == kShownFirst && hidden > 1) {
        line("", fmt::format("... {} more of this kind (--events shows all)", hidden));
        i = events.size() - 1;
      }
      const auto& [event, ranks] = events[i];
      const std::string reporters =
          ranks.size() > 1 ? fmt::format(" (reported by {})", describe_ranks(ranks)) : "";
      line(printable(kind), fmt::format("iteration {}: {}{}", event.iteration,
                                        get_event_text(event, run), reporters));
    }
  }
}

// Prints the other runs of the log_dir.
void print_other_runs(const std::vector<RunEntry>& runs) {
  constexpr std::size_t kMostShown = 20;
  for (std::size_t i = 1; i < std::min(runs.size(), kMostShown + 1); ++i) {
    const RunEntry& run = runs[i];
    const std::string about = run.latest ? fmt::format("started {}, {}", time_text(run.start_time),
                                                       state_text(*run.latest))
                                         : colored("cannot be read: " + run.problem, Color::red);
    line(i == 1 ? "other runs" : "", fmt::format("{}  {}", printable(run.folder), about));
  }
  if (runs.size() > kMostShown + 1) {
    line("", fmt::format("... and {}", counted(runs.size() - kMostShown - 1, "older run")));
  }
}

Json json_texts(const std::vector<std::string>& texts) {
  Json list = Json::array();
  for (const std::string& text : texts) list.push_back(json_text(text));
  return list;
}

Json files_json(const record::RunReader& run) {
  Json list = Json::array();
  for (const auto& [segment, files, thinned] : list_recordings(run)) {
    Json object;
    object["path"] = json_text(segment.path);
    object["rank"] = segment.rank;
    object["files"] = files;
    object["bytes"] = segment.bytes;
    object["records"] = segment.records;
    object["first_iteration"] = segment.records > 0 ? Json(segment.first_iteration) : Json();
    object["last_iteration"] = segment.records > 0 ? Json(segment.last_iteration) : Json();
    object["state"] = json_text(get_state(segment).text);
    object["dropped_rows"] = segment.dropped;
    object["lost_rows"] = segment.lost;
    list.push_back(std::move(object));
  }
  return list;
}

Json scalars_json(const record::RunReader& run) {
  Json list = Json::array();
  for (const auto& [name, summary] : summarize_scalars(run)) {
    Json object;
    object["name"] = json_text(run.names(Dictionary::word)[name]);
    object["first_iteration"] = summary.first.iteration;
    object["first"] = json_number(summary.first.value);
    object["last_iteration"] = summary.last.iteration;
    object["last"] = json_number(summary.last.value);
    list.push_back(std::move(object));
  }
  return list;
}

Json events_json(const record::RunReader& run, bool all) {
  Json list = Json::array();
  for (const auto& [kind, events] : list_events(run, all)) {
    for (const auto& [event, ranks] : events) {
      Json object;
      object["kind"] = json_text(kind);
      object["iteration"] = event.iteration;
      object["text"] = json_text(get_event_text(event, run));
      object["ranks"] = ranks;
      list.push_back(std::move(object));
    }
  }
  return list;
}

// Returns all runs of the log_dir; none if it has only one.
Json runs_json(const std::vector<RunEntry>& runs) {
  Json list = Json::array();
  for (const RunEntry& run : runs) {
    Json object;
    object["path"] = json_text(run.folder);
    object["started"] = time_text(run.start_time);
    object["state"] = run.latest ? json_text(get_state(*run.latest).text) : Json();
    object["problem"] = run.latest ? Json() : json_text(run.problem);
    list.push_back(std::move(object));
  }
  return list;
}

void print_info_json(const record::RunReader& run, const std::string& chosen,
                     const InfoOptions& options) {
  const Segment& first = run.segments().front();
  Json object;
  object["schema_version"] = kInfoSchema;
  object["path"] = json_text(chosen);
  object["run"] = json_text(first.run_id);
  object["started"] = time_text(first.start_time);
  object["state"] = json_text(get_state(run).text);
  object["telens_version"] = json_text(first.telens_version);
  object["ranks"] = first.world_size;
  object["rank_ends"] = json_texts(describe(list_rank_ends(run), run));
  object["missing_ranks"] = json_texts(diagnosis::missing_rank_notes(run));
  object["files"] = files_json(run);
  object["records"] = run.record_count();
  object["layers"] = run.names(Dictionary::layer).size();
  object["tensors"] = json_texts(run.names(Dictionary::tensor));
  object["statistics"] = json_texts(run.names(Dictionary::statistic));
  object["scalars"] = scalars_json(run);
  object["events"] = events_json(run, options.events);
  object["first_problems"] = Json::array();
  if (run.record_count() > 0) {
    const WarmUp warm_up(run);
    for (const Sentence& each : sentences(find_first_trouble(run, warm_up, {}), warm_up, run)) {
      object["first_problems"].push_back(json_text(each.text));
    }
  }
  object["runs"] = runs_json(list_runs(options.run));
  fmt::print("{}\n", json_line(object));
}

// Opens the run. If it cannot be read, prints the other runs of the log_dir and throws RecordError.
record::RunReader open_or_list_others(const InfoOptions& options, const std::string& chosen) {
  // --config, --environment and JSON print nothing else to stdout.
  const bool tables = !options.config && !options.environment && options.format == Format::table;
  const auto warn = [tables](const std::string& trouble) {
    if (!tables) return note(trouble);
    const bool is_damage = trouble.find("damaged") != std::string::npos;
    line(is_damage ? "damaged" : "warning", colored(trouble, Color::red));
  };
  using record::FindDamage;
  try {
    return record::RunReader(chosen, warn, tables ? FindDamage::on_opening : FindDamage::where_read,
                             record::Opening::in_processes);
  } catch (const RecordError&) {
    if (tables) print_other_runs(list_runs(options.run));
    throw;
  }
}

void run_info(const InfoOptions& options) {
  const std::string chosen = choose_run(options.run);
  const record::RunReader run = open_or_list_others(options, chosen);
  if (options.config) {
    fmt::print("{}", printable_lines(run.config_text()));
    return;
  }
  if (options.environment) {
    for (const auto& [name, value] : run.environment()) {
      fmt::print("{}={}\n", printable(name), printable(value));
    }
    return;
  }
  if (options.format == Format::json) return print_info_json(run, chosen, options);
  const Segment& first = run.segments().front();
  line("run", colored(first.run_id, Color::bold));
  line("started", time_text(first.start_time));
  line("recorded by", fmt::format("telens {}, {} of {}", printable(first.telens_version),
                                  counted(run.segments().size(), "file"),
                                  counted(static_cast<std::size_t>(first.world_size), "rank")));
  print_ranks(run);
  print_files(run);
  print_totals(run);
  print_scalars(run);
  print_events(run, options.events);
  if (run.record_count() > 0) {
    const WarmUp warm_up(run);
    print_sentences(sentences(find_first_trouble(run, warm_up, {}), warm_up, run));
    print_pointer(chosen);
  }
  print_other_runs(list_runs(options.run));
}

}  // namespace

void add_info(CLI::App& app) {
  auto options = std::make_shared<InfoOptions>();
  CLI::App* command = app.add_subcommand(
      "info",
      "Summarize a run: contents, status, first problems.\n\nPrints how the run ended, its "
      "files, recorded data, losses and events, and the other runs of the log_dir.");
  add_run(*command, options->run);
  auto* config = command->add_flag("--config", options->config, "Print the run's debug config");
  command->add_flag("--environment", options->environment, "Print the run's environment")
      ->excludes(config);
  command->add_flag("--events", options->events, "List all events, not only the first of a kind");
  add_choice<Format>(*command, "--format", options->format,
                     {{"table", Format::table}, {"json", Format::json}}, "table, or json");
  command->get_option("--format")->excludes("--config")->excludes("--environment");
  command->footer(
      "Examples:\n"
      "  telens info logs\n"
      "  telens info logs --config > debug.yaml");
  command->callback([options] { run_info(*options); });
}

}  // namespace telens::cli
