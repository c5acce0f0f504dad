#include "features/collective_check/seen_collectives.h"

#include <ATen/ops/stack.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "core/base/fnv1a.h"
#include "features/collective_check/collective_verdict.h"
#include "features/engine/compared_items.h"
#include "features/engine/tensor_digest.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace telens::features {
namespace {

using collective_words::kEnded, collective_words::kResult, collective_words::kSent,
    collective_words::kWords;

std::string_view name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::gather:
      return "all-gather";
    case CollectiveKind::sum:
      return "all-reduce";
    case CollectiveKind::sum_and_scatter:
      return "reduce-scatter";
    case CollectiveKind::maximum:
      break;
  }
  return "maximum";
}

}  // namespace

std::size_t SeenCollectives::begin(const CollectiveCall& call, CollectivePlace place) {
  const std::uint64_t group = part_of_group(*call.group);
  const std::uint64_t number = in_group_[group]++;
  const std::string shape =
      fmt::format("{} of {} [{}]", name_of(call.kind), c10::toString(call.sent.scalar_type()),
                  fmt::join(call.sent.sizes(), ", "));
  const std::string& name = call.group->getGroupDesc();
  SeenCollective seen{.place = std::move(place),
                      .kind = call.kind,
                      .key = mixed(group, number),
                      .shape = static_cast<std::int64_t>(fnv1a(shape)),
                      .title = fmt::format("{} over {}", shape, name.empty() ? "its group" : name),
                      .dtype = call.sent.scalar_type(),
                      .ranks = size_of(*call.group),
                      .rank = rank_in(*call.group),
                      .numel = call.sent.numel(),
                      .sent = {},
                      .result = {}};
  seen.sent = call.kind == CollectiveKind::gather
                  ? digest_of(call.sent.reshape({-1}))
                  : collective_sums(call.sent, call.kind, 0, seen.numel);
  all_.push_back(std::move(seen));
  return all_.size() - 1;
}

void SeenCollectives::end(std::size_t number, const at::Tensor& result) {
  if (number >= all_.size()) return;
  SeenCollective& seen = all_[number];
  if (seen.kind != CollectiveKind::gather) {
    const ElementRange range = result_range(seen);
    seen.result = collective_sums(result, seen.kind, range.first, seen.numel);
    return;
  }
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : result.reshape({seen.ranks, -1}).unbind()) {
    parts.push_back(digest_of(part));
  }
  seen.result = at::stack(parts);
}

RankWords SeenCollectives::words() {
  RankWords words;
  for (SeenCollective& each : all_) {
    each.sent = each.sent.cpu().contiguous();
    if (each.result.defined()) each.result = each.result.cpu().contiguous();
    RankWords row(kWords);
    row[0] = static_cast<std::int64_t>(each.key);
    row[1] = each.shape;
    row[2] = each.rank;
    row[kEnded] = each.result.defined() ? 1 : 0;
    if (each.kind == CollectiveKind::gather) {
      std::copy_n(each.sent.const_data_ptr<std::int64_t>(), 2, row.begin() + kSent);
    } else {
      const auto put = [&](const at::Tensor& sums, std::size_t at) {
        const auto* numbers = sums.const_data_ptr<double>();
        for (std::int64_t i = 0; i < kSumsNumbers; ++i) {
          row[at + static_cast<std::size_t>(i)] = std::bit_cast<std::int64_t>(numbers[i]);
        }
      };
      put(each.sent, kSent);
      if (each.result.defined()) put(each.result, kResult);
    }
    words.insert(words.end(), row.begin(), row.end());
  }
  return words;
}

std::vector<WrongCollective> SeenCollectives::wrong(std::span<const RankWords> of_ranks) const {
  std::vector<WrongCollective> wrong;
  for (const SeenCollective& each : all_) {
    if (!each.result.defined()) continue;
    const CollectiveVerdict verdict(each, of_ranks);
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
