#include "features/collective_check/seen_collectives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/base/fnv1a.h"
#include "features/collective_check/collective_verdict.h"
#include "hooks/engine/compared_items.h"
#include "hooks/tensor_ops.h"

namespace telens::features {
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
