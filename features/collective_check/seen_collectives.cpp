#include "features/collective_check/seen_collectives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "core/base/fnv1a.h"
#include "features/collective_check/collective_verdict.h"
#include "hooks/engine/compared_items.h"
#include "hooks/tensor_ops.h"

namespace telens::features {
namespace {

// Returns the unit roundoff: half the distance from 1 to the next number. Integers are not rounded.
double unit_roundoff(DType dtype) {
  constexpr auto kUint16 = static_cast<DType>(27);
  constexpr auto kUint64 = static_cast<DType>(29);
  if (is_integer(dtype) || (dtype >= kUint16 && dtype <= kUint64)) return 0;
  switch (dtype) {
    case DType::float64:
      return 0x1p-53;
    case DType::float32:
      return 0x1p-24;
    case DType::float16:
      return 0x1p-11;
    case DType::bfloat16:
      return 0x1p-8;
    default:
      return 1;
  }
}

}  // namespace

CollectiveSums read_sums(const TensorHandle& on_host) {
  const auto* numbers = on_host.const_data_ptr<double>();
  CollectiveSums sums{.sum = numbers[0], .magnitude = numbers[1], .nonfinite = numbers[2]};
  for (std::size_t i = 0; i < kSamples; ++i) sums.samples[i] = numbers[3 + i];
  return sums;
}

double summation_bound(DType dtype, std::int64_t ranks, double magnitude) {
  const double nu = static_cast<double>(ranks) * unit_roundoff(dtype);
  if (nu >= 0.5) return std::numeric_limits<double>::infinity();
  return nu / (1 - nu) * magnitude;
}

using collective_words::kEnded, collective_words::kRank, collective_words::kResult,
    collective_words::kSent, collective_words::kShape, collective_words::kWords;

void append_words(const SeenCollective& seen, RankWords& words) {
  const std::size_t begin = words.size();
  words.resize(begin + kWords);
  const std::span row = std::span(words).subspan(begin);
  row[0] = static_cast<std::int64_t>(seen.key);
  row[kShape] = seen.shape;
  row[kRank] = seen.rank;
  row[kEnded] = seen.result.defined() ? 1 : 0;
  if (seen.kind == CollectiveKind::gather) {
    std::copy_n(seen.sent.const_data_ptr<std::int64_t>(), 2, row.begin() + kSent);
    return;
  }
  if (sends_rows(seen.kind)) {
    static_assert(kExchangeWords <= kSumsNumbers);
    const auto copy = [&](const TensorHandle& from, std::size_t at) {
      std::copy_n(from.const_data_ptr<std::int64_t>(), kExchangeWords,
                  row.begin() + static_cast<std::ptrdiff_t>(at));
    };
    copy(seen.sent, kSent);
    if (seen.result.defined()) copy(seen.result, kResult);
    return;
  }
  const auto put = [&](const TensorHandle& sums, std::size_t at) {
    const auto* numbers = sums.const_data_ptr<double>();
    for (std::int64_t i = 0; i < kSumsNumbers; ++i) {
      row[at + static_cast<std::size_t>(i)] = std::bit_cast<std::int64_t>(numbers[i]);
    }
  };
  put(seen.sent, kSent);
  if (seen.result.defined()) put(seen.result, kResult);
}

ToldCollectives::ToldCollectives(std::span<const SeenCollective> own,
                                 std::span<const RankWords> of_ranks) {
  for (const SeenCollective& each : own) by_key_.try_emplace(each.key);
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const std::span<const std::int64_t> words(of_ranks[rank]);
    for (std::size_t i = 0; i + kWords <= words.size(); i += kWords) {
      const auto known = by_key_.find(static_cast<std::uint64_t>(words[i]));
      if (known == by_key_.end()) continue;
      known->second.push_back({static_cast<int>(rank), words.subspan(i, kWords)});
    }
  }
}

std::span<const ToldCollective> ToldCollectives::of(std::uint64_t key) const {
  const auto known = by_key_.find(key);
  if (known == by_key_.end()) return {};
  return known->second;
}

namespace {

std::string_view get_name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::gather:
      return "all-gather";
    case CollectiveKind::sum:
      return "all-reduce";
    case CollectiveKind::sum_and_scatter:
      return "reduce-scatter";
    case CollectiveKind::exchange:
      return "all-to-all";
    case CollectiveKind::pass:
      return "transfer round a ring";
    case CollectiveKind::maximum:
      break;
  }
  return "maximum";
}

// Ranks may exchange different numbers of rows.
std::string get_sizes(const ObservedCollective& call) {
  if (!sends_rows(call.kind)) {
    return fmt::format("{}", fmt::join(call.sent.sizes(), ", "));
  }
  return fmt::format("{}", fmt::join(call.sent.sizes().subspan(1), ", "));
}

TensorHandle get_words(const ObservedCollective& call, const SeenCollective& seen) {
  switch (call.kind) {
    case CollectiveKind::gather:
      return tensor_ops::digests_of_parts(call.sent, 1);
    case CollectiveKind::exchange:
    case CollectiveKind::pass:
      return tensor_ops::exchange_words(call.sent, call.rows->sent, seen.rank, /*received=*/false);
    default:
      return tensor_ops::collective_sums(call.sent, call.kind, 0, seen.numel);
  }
}

}  // namespace

std::size_t SeenCollectives::begin(const ObservedCollective& call, CollectivePlace place) {
  const RankGroup& ranks = *call.group;
  const std::uint64_t group = part_of_group(ranks);
  const std::uint64_t number = in_group_[group]++;
  const std::string shape = fmt::format("{} of {} [{}]", get_name(call.kind),
                                        telens::get_name(call.sent.dtype()), get_sizes(call));
  const std::string name = ranks.description();
  SeenCollective seen{.place = std::move(place),
                      .kind = call.kind,
                      .key = mixed(group, number),
                      .shape = static_cast<std::int64_t>(fnv1a(shape)),
                      .title = fmt::format("{} over {}", shape, name.empty() ? "its group" : name),
                      .dtype = call.sent.dtype(),
                      .ranks = ranks.size(),
                      .rank = ranks.rank(),
                      .numel = call.sent.numel(),
                      .sent = {},
                      .result = {}};
  if (call.rows != nullptr) seen.received = call.rows->received;
  seen.sent = get_words(call, seen);
  all_.push_back(std::move(seen));
  return all_.size() - 1;
}

void SeenCollectives::end(std::size_t number, const TensorHandle& result) {
  if (number >= all_.size()) return;
  SeenCollective& seen = all_[number];
  if (sends_rows(seen.kind)) {
    seen.result = tensor_ops::exchange_words(result, seen.received, seen.rank, /*received=*/true);
    return;
  }
  if (seen.kind != CollectiveKind::gather) {
    const ElementRange range = result_range(seen);
    seen.result = tensor_ops::collective_sums(result, seen.kind, range.first, seen.numel);
    return;
  }
  seen.result = tensor_ops::digests_of_parts(result, seen.ranks);
}

RankWords SeenCollectives::words() {
  RankWords words;
  for (SeenCollective& each : all_) {
    each.sent = tensor_ops::to_host(each.sent);
    if (each.result.defined()) each.result = tensor_ops::to_host(each.result);
    append_words(each, words);
  }
  return words;
}

std::vector<WrongCollective> wrong_ones(std::span<const SeenCollective> own,
                                        std::span<const RankWords> of_ranks) {
  const ToldCollectives told(own, of_ranks);
  std::vector<WrongCollective> wrong;
  for (const SeenCollective& each : own) {
    if (!each.result.defined()) continue;
    const CollectiveVerdict verdict(each, told.of(each.key));
    if (const auto text = verdict.text()) {
      wrong.push_back(
          {each.place, fmt::format("{}: {}", each.title, *text), verdict.lost_elements()});
    }
  }
  return wrong;
}

std::vector<CollectivePlace> SeenCollectives::places() const {
  std::vector<CollectivePlace> places;
  for (const SeenCollective& each : all_) places.push_back(each.place);
  std::ranges::sort(places, [](const auto& a, const auto& b) { return a < b; });
  const auto rest = std::ranges::unique(
      places, [](const auto& a, const auto& b) { return !(a < b) && !(b < a); });
  places.erase(rest.begin(), rest.end());
  return places;
}

}  // namespace telens::features
