#include "analysis/facts.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <unordered_set>
#include <utility>

#include "analysis/run_state.h"
#include "hooks/statistics/histogram.h"

namespace telens::analysis {
namespace {

using record::Dictionary;

constexpr std::string_view kWarmUp = "warm_up";

// "layers.12.fc1" -> "layers.*.fc*"
std::string without_numbers(std::string_view name) {
  std::string part;
  for (const char c : name) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) {
      part += c;
    } else if (part.empty() || part.back() != '*') {
      part += '*';
    }
  }
  return part;
}

// "layers.12.fc1" -> "layers.*.fc1"
std::string without_indices(const std::string& name) {
  std::string kind;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool is_number =
        !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    kind += (begin > 0 ? "." : "") + (is_number ? "*" : part);
    begin = end + 1;
  }
  return kind;
}

// Sorts points by iteration. If an iteration occurs twice, for example in rows of a look-back
// buffer, the later point counts.
void sort_by_iteration(std::vector<Point>& points) {
  if (!std::ranges::is_sorted(points, {}, &Point::iteration)) {
    std::ranges::stable_sort(points, {}, &Point::iteration);
  }
  std::size_t kept = 0;
  for (const Point& point : points) {
    if (kept > 0 && points[kept - 1].iteration == point.iteration) --kept;
    points[kept++] = point;
  }
  points.resize(kept);
}

}  // namespace

std::string GemmState::detail(const std::string& entry) const {
  const auto found = entries.find(entry);
  return found == entries.end() ? std::string() : found->second;
}

Facts::Facts(const record::RunReader& run, std::span<const std::string_view> statistics,
             Iterations iterations)
    : read_(iterations),
      why_not_compared_(analysis::why_not_compared(run)),
      config_text_(run.config_text()),
      ending_(find_ending(run)) {
  read_names(run);
  read_resumes(run);
  read_world(run);
  read_warm_up(run);
  read_series(run, statistics);
  read_histograms(run, statistics);
  put_in_order();
  read_scalars(run);
  read_ledger(run);
}

std::size_t Facts::KeyHash::operator()(const Key& key) const {
  const auto mix = [](std::uint64_t hash, std::int64_t value) {
    constexpr std::uint64_t kGoldenRatio = 0x9E3779B97F4A7C15U;  // 2^64 / phi: Knuth's multiplier
    return (hash ^ static_cast<std::uint64_t>(value)) * kGoldenRatio;
  };
  const auto& [layer, tensor, gemm, rank, statistic] = key;
  const std::uint64_t hash = mix(mix(mix(mix(mix(0, layer), tensor), gemm), rank), statistic);
  return hash ^ (hash >> 32U);
}

Facts::Key Facts::make_key(const Place& place, std::int32_t statistic) {
  return {place.layer, place.tensor ? static_cast<int>(*place.tensor) : -1,
          place.gemm ? static_cast<int>(*place.gemm) : -1, place.rank, statistic};
}

record::RecordQuery Facts::query() const {
  record::RecordQuery query;
  query.first_iteration = read_.first;
  query.last_iteration = read_.last;
  return query;
}

void Facts::read_names(const record::RunReader& run) {
  layer_names_ = run.names(Dictionary::layer);
  for (const std::string& name : layer_names_) {
    parts_.push_back(without_numbers(name));
    kinds_.push_back(without_indices(name));
  }
  const auto& names = run.names(Dictionary::statistic);
  for (std::size_t i = 0; i < names.size(); ++i) {
    statistics_.emplace(names[i], static_cast<std::int32_t>(i));
  }
}

void Facts::read_resumes(const record::RunReader& run) {
  std::set<int> ranks;
  std::map<int, const record::Segment*> before;  // by rank, with records
  for (const record::Segment& segment : run.segments()) {
    ranks.insert(segment.rank);
    if (segment.records == 0) continue;
    const record::Segment* last = std::exchange(before[segment.rank], &segment);
    if (segment.continues || segment.segment == 0) continue;
    Resume resume{.first = segment.first_iteration};
    if (last != nullptr) {
      resume.last_before = std::min(last->last_iteration, last->superseded_from - 1);
      if (resume.last_before < last->first_iteration) continue;  // restarted
    }
    resumes_.push_back(resume);
  }
  ranks_ = static_cast<int>(ranks.size());
}

void Facts::read_world(const record::RunReader& run) {
  std::map<int, const record::Segment*> last;
  std::map<int, std::int64_t> reached;
  const record::Segment* newest = nullptr;
  for (const record::Segment& segment : run.segments()) {
    last[segment.rank] = &segment;
    if (newest == nullptr || segment.start_time > newest->start_time) newest = &segment;
    std::int64_t& iteration = reached.try_emplace(segment.rank, INT64_MIN).first->second;
    if (segment.records == 0) continue;
    iteration = std::max(iteration, std::min(segment.last_iteration, segment.superseded_from - 1));
  }
  for (const auto& [rank, segment] : last) {
    if (segment->world_size != newest->world_size) continue;
    last_of_ranks_[rank] = std::min(reached[rank], read_.last);
  }
}

std::optional<std::int64_t> Facts::last_of_rank(int rank) const {
  const auto found = last_of_ranks_.find(rank);
  return found == last_of_ranks_.end() ? std::nullopt : std::optional(found->second);
}

void Facts::read_warm_up(const record::RunReader& run) {
  const auto& words = run.names(Dictionary::word);
  for (const record::Event& event : run.events()) {
    if (event.layer == record::kNoName || event.kind == record::kNoName || event.superseded) {
      continue;
    }
    if (words[event.kind] == kWarmUp) warm_up_[event.layer].insert(event.iteration);
  }
}

void Facts::read_series(const record::RunReader& run,
                        std::span<const std::string_view> statistics) {
  record::RecordQuery query = this->query();
  query.statistics.emplace();
  for (const std::string_view name : statistics) {
    const auto found = statistics_.find(std::string(name));
    if (found != statistics_.end()) query.statistics->push_back(found->second);
  }
  const auto get_names = [&run](Dictionary dictionary) { return run.names(dictionary); };
  std::vector<std::optional<TensorName>> tensors;
  for (const auto& name : get_names(Dictionary::tensor)) tensors.push_back(tensor_from_name(name));
  std::vector<std::optional<Gemm>> gemms;
  for (const auto& name : get_names(Dictionary::gemm)) gemms.push_back(gemm_from_name(name));
  std::vector<InWarmUp> in_warm_up;
  for (const auto& name : run.names(Dictionary::statistic)) {
    in_warm_up.push_back(judge_in_warm_up(name));
  }
  std::unordered_map<std::int32_t, std::unordered_map<Key, int, KeyHash>> owners;  // by scope

  const auto add = [&](int rank, const record::Record& row) {
    if (row.layer == record::kNoName || row.tensor == record::kNoName || !tensors[row.tensor]) {
      return;
    }
    Place place{.layer = row.layer, .tensor = tensors[row.tensor], .rank = rank};
    if (row.gemm != record::kNoName) place.gemm = gemms[row.gemm];
    if (row.scope != record::kNoName) {
      // Each rank of the group stores a reduced value in its file.
      place.rank = kAllRanks;
      const Key key = make_key(place, row.statistic);
      if (owners[row.scope].try_emplace(key, rank).first->second != rank) return;
    }
    add_point(place, row.statistic, {row.iteration, row.value}, in_warm_up[row.statistic]);
  };
  run.read(query, [&](int rank, std::span<const record::Record> rows) {
    for (const record::Record& row : rows) add(rank, row);
  });
}

Facts::InWarmUp Facts::judge_in_warm_up(std::string_view statistic) {
  // Differences between ranks have a meaning under any scale.
  if (statistic.ends_with("_differs") || statistic == "collectives_wrong" ||
      statistic == "nonfinite_lost" || statistic.starts_with("digest")) {
    return InWarmUp::meaningful;
  }
  const bool is_of_cast = statistic.starts_with("scale_") || statistic.starts_with("stale_") ||
                          statistic == "underflows%" || statistic == "mse";
  // All other statistics are only kept for weights, whose values do not depend on a cast.
  return is_of_cast ? InWarmUp::meaningless : InWarmUp::meaningful_of_weights;
}

void Facts::add_point(const Place& place, std::int32_t statistic, const Point& point,
                      InWarmUp warm_up) {
  first_ = std::min(first_, point.iteration);
  last_ = std::max(last_, point.iteration);
  const auto [at, is_new] = index_.try_emplace(make_key(place, statistic), series_.size());
  if (is_new) series_.push_back({place, statistic});
  Series& series = series_[at->second];
  const bool is_meaningless =
      warm_up == InWarmUp::meaningless ||
      (warm_up == InWarmUp::meaningful_of_weights && place.tensor != TensorName::weight);
  if (is_meaningless && is_warm_up(place.layer, point.iteration)) {
    constexpr double kUnknown = std::numeric_limits<double>::infinity();
    series.largest_in_warm_up =
        std::max(series.largest_in_warm_up, std::isfinite(point.value) ? point.value : kUnknown);
    return;
  }
  series.points.push_back(point);
}

void Facts::read_histograms(const record::RunReader& run,
                            std::span<const std::string_view> statistics) {
  struct Wanted {
    std::string_view name;
    double (*count)(const NonFiniteCounts& counts);
  };
  constexpr std::array kWanted{
      Wanted{"nonfinite", [](const NonFiniteCounts& counts) { return counts.all(); }},
      Wanted{"nan", [](const NonFiniteCounts& counts) { return counts.nans; }}};
  const auto& names = run.names(Dictionary::statistic);
  const auto& tensors = run.names(Dictionary::tensor);
  record::RecordQuery query = this->query();
  query.statistics.emplace();
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (parse_histogram_name(names[i])) {
      query.statistics->push_back(static_cast<std::int32_t>(i));
    }
  }
  if (query.statistics->empty()) return;
  struct Counted {
    Place place;
    NonFiniteCounts counts;
  };
  std::map<std::pair<std::int64_t, Key>, Counted> all;  // parts of an iteration are added up
  std::vector<BinCount> bins;
  run.read_histograms(query, [&](int rank, const record::Record& record,
                                 std::span<const record::HistogramBin> stored) {
    if (record.layer == record::kNoName || record.tensor == record::kNoName) return;
    const Place place{
        .layer = record.layer, .tensor = tensor_from_name(tensors[record.tensor]), .rank = rank};
    if (!place.tensor) return;
    bins.clear();
    for (const auto& [bin, count] : stored) bins.push_back({bin, static_cast<std::int64_t>(count)});
    const NonFiniteCounts part =
        count_nonfinite({*parse_histogram_name(names[record.statistic]), bins});
    Counted& counted = all[{record.iteration, make_key(place, 0)}];
    counted.place = place;
    counted.counts.nans += part.nans;
    counted.counts.infinities += part.infinities;
  });
  auto next = static_cast<std::int32_t>(names.size());
  for (const auto& [name, count] : kWanted) {
    if (std::ranges::find(statistics, name) == statistics.end()) continue;
    const std::int32_t id = statistics_.try_emplace(std::string(name), next++).first->second;
    for (const auto& [when, counted] : all) {
      Place reduced = counted.place;
      reduced.rank = kAllRanks;
      if (index_.contains(make_key(reduced, id))) continue;
      add_point(counted.place, id, {when.first, count(counted.counts)},
                InWarmUp::meaningful_of_weights);
    }
  }
}

void Facts::put_in_order() {
  for (Series& each : series_) sort_by_iteration(each.points);
  std::erase_if(series_, [](const Series& each) { return each.points.empty(); });
  std::ranges::stable_sort(series_, [](const Series& a, const Series& b) {
    const auto turn_a = get_order_in_step(a.place);
    const auto turn_b = get_order_in_step(b.place);
    return turn_a != turn_b ? turn_a < turn_b : a.place.rank < b.place.rank;
  });
  index_.clear();
  for (std::size_t i = 0; i < series_.size(); ++i) {
    index_.emplace(make_key(series_[i].place, series_[i].statistic), i);
    by_statistic_[series_[i].statistic].push_back(i);
  }
}

void Facts::read_scalars(const record::RunReader& run) {
  std::map<std::pair<std::int32_t, int>, std::size_t> known;
  for (const record::Scalar& scalar : run.rows<record::Scalar>(query())) {
    if (scalar.name == record::kNoName) continue;
    const auto [at, is_new] = known.try_emplace({scalar.name, scalar.rank}, scalars_.size());
    if (is_new) scalars_.push_back({run.names(Dictionary::word)[scalar.name], scalar.rank, {}});
    scalars_[at->second].points.push_back({scalar.iteration, scalar.value});
  }
  for (Scalars& each : scalars_) sort_by_iteration(each.points);
}

// Rows of a state are consecutive and contain each entry once.
void Facts::read_ledger(const record::RunReader& run) {
  const auto& words = run.names(Dictionary::word);
  const auto& gemms = run.names(Dictionary::gemm);
  using StateKey = std::tuple<int, std::int32_t, std::int32_t, double>;
  std::optional<StateKey> last;
  record::RecordQuery query = this->query();
  query.first_iteration = INT64_MIN;
  for (const record::LedgerRow& row : run.rows<record::LedgerRow>(query)) {
    if (row.entry == record::kNoName || row.detail == record::kNoName) continue;
    first_ = std::min(first_, row.iteration);
    last_ = std::max(last_, row.iteration);
    const auto reached = last_of_ranks_.find(row.rank);
    if (reached != last_of_ranks_.end()) reached->second = std::max(reached->second, row.iteration);
    const StateKey key{row.rank, row.layer, row.gemm, row.value};
    if (key != last || gemm_states_.back().entries.contains(words[row.entry])) {
      Place place{.layer = row.layer, .rank = row.rank};
      if (row.gemm != record::kNoName) place.gemm = gemm_from_name(gemms[row.gemm]);
      gemm_states_.push_back({place, row.iteration, {}});
      last = key;
    }
    gemm_states_.back().entries.emplace(words[row.entry], words[row.detail]);
  }
  std::ranges::stable_sort(gemm_states_, {}, [](const GemmState& state) {
    const int gemm = state.place.gemm ? static_cast<int>(*state.place.gemm) : -1;
    return std::tuple(state.place.rank, state.place.layer, gemm);
  });
}

std::vector<const Series*> Facts::with(std::string_view statistic) const {
  std::vector<const Series*> found;
  const auto id = statistics_.find(std::string(statistic));
  if (id == statistics_.end()) return found;
  const auto rows = by_statistic_.find(id->second);
  if (rows == by_statistic_.end()) return found;
  for (const std::size_t i : rows->second) found.push_back(&series_[i]);
  return found;
}

const Series* Facts::find(const Place& place, std::int32_t statistic) const {
  const auto found = index_.find(make_key(place, statistic));
  return found == index_.end() ? nullptr : &series_[found->second];
}

const Series* Facts::find(const Place& place, std::string_view statistic) const {
  const auto id = statistics_.find(std::string(statistic));
  if (id == statistics_.end()) return nullptr;
  Place at = place;
  if (const Series* exact = find(at, id->second)) return exact;
  at.gemm.reset();
  if (const Series* of_tensor = find(at, id->second)) return of_tensor;
  for (const Gemm gemm : kAllGemms) {
    at.gemm = gemm;
    if (const Series* of_copy = find(at, id->second)) return of_copy;
  }
  return nullptr;
}

const Series* Facts::beside(const Series& series, std::string_view statistic) const {
  return find(series.place, statistic);
}

const std::set<std::int64_t>& Facts::warm_up(std::int32_t layer) const {
  static const auto& kNone =
      *new std::set<std::int64_t>;  // for threads that outlast static objects
  const auto found = warm_up_.find(layer);
  return found == warm_up_.end() ? kNone : found->second;
}

const std::string& Facts::layer_name(std::int32_t layer) const {
  static const auto& kNone = *new std::string;
  return layer == record::kNoName ? kNone : layer_names_[layer];
}

}  // namespace telens::analysis
