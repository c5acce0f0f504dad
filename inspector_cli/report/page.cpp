// Charts as JSON, and the page that draws them: page.html with Chart.js and page.js, which CMake
// embeds. Only these scripts may run, so that markup in a name of a run stays harmless.
#include "inspector_cli/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json.h"
#include "inspector_cli/report/axis.h"
#include "inspector_cli/report/chart.h"
#include "inspector_cli/report/histogram_chart.h"
#include "inspector_cli/report/report_page.h"
#include "inspector_cli/terminal/text.h"

namespace telens::cli {
namespace {

// Places on an axis, 0 to 1, are written as integers: short, and finer than any pixel.
constexpr double kHighestPlace = 10000;

std::int64_t page_place(double place) { return std::lround(place * kHighestPlace); }

// Significant digits in the page. The many cells of heat maps have fewer.
constexpr int kDigits = 6;
constexpr int kCellDigits = 4;

Json rounded(double value, int digits) {
  if (!std::isfinite(value)) return json_number(value);
  const std::string text = fmt::format("{:.{}g}", value, digits);
  double shorter = 0;
  std::from_chars(text.data(), text.data() + text.size(), shorter);
  return shorter;
}

// A null value was not recorded. A null place means that the value is non-finite or of warm-up.
Json row_json(const Line& line, const Axis& axis, int digits) {
  Json values = Json::array();
  Json places = Json::array();
  for (const Bin& bin : line.bins) {
    values.push_back(bin.seen() ? rounded(bin.value(), digits) : Json());
    places.push_back(bin.drawn() ? Json(page_place(axis.place(bin.value()))) : Json());
  }
  return {{"label", json_text(line.label)},
          {"label46", json_text(shortened(line.label, 46))},
          {"label20", json_text(shortened(line.label, 20))},
          {"values", std::move(values)},
          {"places", std::move(places)}};
}

Json ticks_json(const Axis& axis) {
  Json ticks = Json::array();
  for (const auto& [place, label] : axis.ticks()) ticks.push_back({page_place(place), label});
  return ticks;
}

Json chart_json(std::string_view kind, const std::string& title, const std::vector<Line>& lines,
                const Axis& axis) {
  Json rows = Json::array();
  for (const Line& line : lines) {
    rows.push_back(row_json(line, axis, kind == "map" ? kCellDigits : kDigits));
  }
  std::string highest = fmt::format("{:.4g}", axis.value_at(1));
  if (!axis.short_note().empty()) highest += ", " + axis.short_note();
  std::string note = axis.note();
  if (kind == "map") {
    if (!note.empty()) note += "; ";
    note += axis.is_absolute() ? "the same colors in every run" : "colors span this run's values";
  }
  return {{"kind", kind},
          {"title", json_text(title)},
          {"note", std::move(note)},
          {"unit", ""},
          {"ticks", ticks_json(axis)},
          {"lowest", fmt::format("{:.4g}", axis.value_at(0))},
          {"highest", std::move(highest)},
          {"rows", std::move(rows)}};
}

std::string_view get_name(Gravity gravity) {
  switch (gravity) {
    case Gravity::grave:
      return "grave";
    case Gravity::notable:
      return "notable";
    case Gravity::fine:
      return "fine";
    case Gravity::plain:
      break;
  }
  return "plain";
}

Json headlines_json(const Chart& chart) {
  Json headlines = Json::array();
  for (const auto& [text, gravity] : chart.headlines) {
    headlines.push_back({{"text", json_text(text)}, {"gravity", get_name(gravity)}});
  }
  return headlines;
}

Json trouble_json(const Chart& chart) {
  const auto& bad = chart.trouble.nonfinite;
  const bool shown =
      bad && bad->iteration >= chart.first_iteration && bad->iteration <= chart.last_iteration;
  return shown ? Json{{"bin", chart.get_bin(bad->iteration)}} : Json();
}

Json page_data(const Chart& chart, Json charts) {
  Json iterations = Json::array();
  for (std::size_t b = 0; b < chart.bins; ++b) iterations.push_back(chart.get_iteration(b));
  Json ticks = Json::array();
  for (const std::int64_t iteration : chart.iteration_ticks()) {
    ticks.push_back({chart.get_bin(iteration), iteration});
  }
  return {{"run", json_text(chart.run_id)},        {"title", json_text(chart.title())},
          {"subtitle", json_text(chart.subtitle)}, {"headlines", headlines_json(chart)},
          {"iterations", std::move(iterations)},   {"lastIteration", chart.last_iteration},
          {"iterationTicks", std::move(ticks)},    {"trouble", trouble_json(chart)},
          {"charts", std::move(charts)},           {"sections", Json::array()}};
}

// Adds the tensors by row; they share a second axis.
void add_tensors(Json& map, const Panel& panel) {
  std::vector<Line> all;
  for (const auto& tensors : panel.tensors) all.insert(all.end(), tensors.begin(), tensors.end());
  if (all.empty()) return;
  const Axis axis(all);
  map["tensorTicks"] = ticks_json(axis);
  for (std::size_t i = 0; i < panel.tensors.size(); ++i) {
    Json& tensors = map["rows"][i]["tensors"] = Json::array();
    for (const Line& each : panel.tensors[i]) {
      tensors.push_back(row_json(each, axis, kCellDigits));
    }
  }
}

std::string layers_shown(const Panel& panel) {
  if (panel.layers_left_out == 0) return "";
  return fmt::format(", the {} worst of {} layers", panel.layers.size(),
                     panel.layers.size() + panel.layers_left_out);
}

Json rank_axis(const RankMaps& ranks) {
  constexpr std::size_t kTicks = 8;
  Json ticks = Json::array();
  const std::size_t step = (ranks.ranks.size() + kTicks - 1) / kTicks;
  for (std::size_t b = 0; b < ranks.ranks.size(); b += step) ticks.push_back({b, ranks.ranks[b]});
  return {{"name", "rank"}, {"firsts", ranks.ranks}, {"last", ranks.last_rank}, {"ticks", ticks}};
}

// Adds the rank map of a statistic if its layers have values of single ranks.
void add_rank_map(Json& charts, const RankMaps& ranks, const std::string& statistic) {
  const auto map = std::ranges::find(ranks.maps, statistic, &RankMap::statistic);
  if (map == ranks.maps.end()) return;
  charts.push_back(chart_json("map", statistic + " of layers by ranks, worst iteration",
                              map->layers, Axis::of_map(statistic, map->layers)));
  charts.back()["axis"] = rank_axis(ranks);
}

Json make_charts(const Chart& chart, const RankMaps& ranks = {}) {
  Json charts = Json::array();
  for (const Line& scalar : chart.scalars) {
    charts.push_back(chart_json("lines", scalar.label, {scalar}, Axis({scalar})));
  }
  for (const Panel& panel : chart.panels) {
    charts.push_back(chart_json("lines", panel.statistic + ": the worst tensors", panel.worst,
                                Axis(panel.worst)));
    charts.push_back(
        chart_json("map", panel.statistic + " of each layer's worst tensor" + layers_shown(panel),
                   panel.layers, Axis::of_map(panel.statistic, panel.layers)));
    add_tensors(charts.back(), panel);
    add_rank_map(charts, ranks, panel.statistic);
  }
  return charts;
}

Json make_charts(const HistogramChart& chart) {
  Json charts = Json::array();
  for (const TensorHistogram& tensor : chart.tensors) {
    charts.push_back(chart_json(chart.one_iteration() ? "bars" : "map",
                                tensor.tensor + single_iteration(chart, tensor), tensor.rows,
                                Axis::of_percentages()));
    charts.back()["unit"] = " %";
  }
  return charts;
}

}  // namespace

std::string json_for_html(const Json& json) {
  std::string text = json_line(json);
  for (std::size_t at = 0; (at = text.find('<', at)) != std::string::npos;) {
    text.replace(at, 1, "\\u003c");  // prevents "</script>" and "<!--"; '<' occurs only in strings
  }
  return text;
}

std::string draw_html(const Chart& chart) {
  return make_page(json_for_html(page_data(chart, make_charts(chart))));
}

std::string draw_html(const HistogramChart& chart) {
  return make_page(json_for_html(page_data(chart.frame, make_charts(chart))));
}

Json report_data(const Chart& chart, const RankMaps& ranks, const HistogramChart* histograms) {
  Json charts = make_charts(chart, ranks);
  if (histograms != nullptr) {
    for (Json& each : make_charts(*histograms)) charts.push_back(std::move(each));
  }
  return page_data(chart, std::move(charts));
}

namespace {

constexpr std::size_t kBlock = 64;
using State = std::array<std::uint32_t, 8>;

// The first 32 bits of the fractional parts of the square roots of the first 8 primes, and of the
// cube roots of the first 64 (FIPS 180-4, 5.3.3 and 4.2.2).
constexpr State kInitial{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
constexpr std::array<std::uint32_t, 64> kRounds{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

void add_block(State& state, std::string_view block) {
  std::array<std::uint32_t, 64> words{};
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t byte = 0; byte < 4; ++byte) {
      words[i] = words[i] << 8 | static_cast<unsigned char>(block[4 * i + byte]);
    }
  }
  for (std::size_t i = 16; i < words.size(); ++i) {
    const std::uint32_t a = words[i - 15];
    const std::uint32_t b = words[i - 2];
    words[i] = words[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + words[i - 7] +
               (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::uint32_t first = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                                ((e & f) ^ (~e & g)) + kRounds[i] + words[i];
    const std::uint32_t second =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
  }
  const State after{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += after[i];
}

std::string sha256(std::string_view text) {
  std::string padded(text);
  padded += '\x80';
  padded.resize((padded.size() + 8 + kBlock - 1) / kBlock * kBlock - 8);
  const std::uint64_t bits = 8 * static_cast<std::uint64_t>(text.size());
  for (int shift = 56; shift >= 0; shift -= 8) padded += static_cast<char>(bits >> shift & 0xFF);
  State state = kInitial;
  for (std::size_t at = 0; at < padded.size(); at += kBlock) {
    add_block(state, std::string_view(padded).substr(at, kBlock));
  }
  std::string digest;
  for (const std::uint32_t word : state) {
    for (int shift = 24; shift >= 0; shift -= 8) digest += static_cast<char>(word >> shift & 0xFF);
  }
  return digest;
}

// Returns the base64 SHA-256 of the text, as `script-src 'sha256-...'` requires.
std::string base64_sha256(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::string digest = sha256(text);
  std::string base64;
  for (std::size_t at = 0; at < digest.size(); at += 3) {
    std::uint32_t three = 0;
    const std::size_t bytes = std::min<std::size_t>(3, digest.size() - at);
    for (std::size_t i = 0; i < 3; ++i) {
      three = three << 8 | (i < bytes ? static_cast<unsigned char>(digest[at + i]) : 0);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      base64 += i <= bytes ? kDigits[three >> (18 - 6 * i) & 63] : '=';
    }
  }
  return base64;
}

// Returns the Content-Security-Policy of a page: only its own scripts may run. With `may_fetch`, it
// may also fetch from the server that it came from.
std::string page_policy(std::string_view page, bool may_fetch) {
  constexpr std::string_view kBegin = "<script>";
  constexpr std::string_view kEnd = "</script>";
  std::string scripts;
  for (std::size_t at = page.find(kBegin); at != page.npos; at = page.find(kBegin, at)) {
    at += kBegin.size();
    const std::size_t end = std::min(page.find(kEnd, at), page.size());
    scripts += fmt::format(" 'sha256-{}'", base64_sha256(page.substr(at, end - at)));
  }
  return fmt::format(
      "default-src 'none';{} script-src{}; style-src 'unsafe-inline'; img-src data:; base-uri "
      "'none'; form-action 'none'",
      may_fetch ? " connect-src 'self';" : "", scripts);
}

// Returns the page with `policy` in place of the template's policy, which forbids everything.
std::string with_policy(std::string_view data, const std::string& policy) {
  constexpr std::string_view kForbidsAll = "default-src 'none'";
  std::string begin(kPageBegin);
  const std::size_t at = begin.find(kForbidsAll);
  if (at == std::string::npos)
    raise<InternalError>("the page template lacks a Content-Security-Policy");
  begin.replace(at, kForbidsAll.size(), policy);
  return fmt::format("{}{}{}", begin, data, kPageEnd);
}

}  // namespace

std::string make_page(std::string_view data) {
  // A page in a file may not fetch anything.
  static const std::string policy = page_policy(kPageEnd, false);
  return with_policy(data, policy);
}

const std::string& live_page_policy() {
  static const std::string policy = page_policy(kPageEnd, true);
  return policy;
}

std::string make_live_page(std::string_view data) { return with_policy(data, live_page_policy()); }

}  // namespace telens::cli
