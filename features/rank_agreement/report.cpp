// Rows and warnings about tensors that must be equal on all ranks.
#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <limits>

#include "core/base/text.h"
#include "features/rank_agreement/rank_agreement.h"

namespace telens::features {
namespace {

// " (1.5, on rank 0 0.75)": the scales that a rank and most other ranks multiply by.
std::string get_scales(const ComparedItems& items, const Difference& difference,
                       std::span<const RankWords> of_ranks) {
  if (items.name(difference.item).what != "scale") return "";
  const auto value = [&](int rank) {
    const std::int64_t word =
        items.first_word(difference.item, of_ranks[static_cast<std::size_t>(rank)]);
    const bool is_one_number = word >= std::numeric_limits<std::int32_t>::min() &&
                               word <= std::numeric_limits<std::int32_t>::max();
    return is_one_number
               ? fmt::format("{:.9g}", 1 / std::bit_cast<float>(static_cast<std::int32_t>(word)))
               : std::string();
  };
  const std::string odd = value(difference.odd.front());
  const std::string usual = value(difference.usual);
  if (odd.empty() || usual.empty()) return "";
  return fmt::format(" ({}, and {} there)", odd, usual);
}

// "scale of activation", "weight"; a replica is the tensor itself.
std::string get_subject(const ItemName& name) {
  if (name.what == "replica") return name.tensor;
  const bool is_of_tensor = name.what == "scale" || name.what == "amax history";
  return is_of_tensor ? fmt::format("{} of {}", name.what, name.tensor) : std::string(name.what);
}

}  // namespace

void report(const ComparedItems& items, std::int64_t iteration, std::span<const RankWords> of_ranks,
            std::string_view title, FeatureServices& services, std::set<std::string>& told) {
  const int own = services.options().rank;
  std::vector<Compared> compared;
  const std::vector<Difference> differences = items.differences(of_ranks, own, compared);
  for (std::size_t i = 0; i < compared.size(); ++i) {
    if (!compared[i].has_peers) continue;
    const ItemName& name = items.name(i);
    services.record(
        {.iteration = iteration,
         .series = &services.series().find_or_add(
             {.layer = name.layer, .tensor = name.tensor, .statistic = differs_name(name.what)}),
         .value = compared[i].is_odd ? 1.0 : 0.0});
  }
  const Difference* first = nullptr;
  std::size_t others = 0;
  for (const Difference& each : differences) {
    const ItemName& name = items.name(each.item);
    if (!told.insert(fmt::format("{} {} {}", name.layer, name.tensor, name.what)).second) continue;
    if (first == nullptr) {
      first = &each;
    } else {
      ++others;
    }
  }
  // A run of a thousand ranks reports it twice, not a thousand times.
  if (first == nullptr || (own != first->usual && own != first->odd.front())) return;
  const ItemName& name = items.name(first->item);
  const std::string subject = get_subject(name);
  services.announce(
      "ranks_differ",
      fmt::format("{}: iteration {}: {}: the {} differs on {} from rank {}'s{}{}", title, iteration,
                  name.layer, subject, describe_ranks(first->odd), first->usual,
                  get_scales(items, *first, of_ranks),
                  others == 0 ? "" : fmt::format("; {} more differ from here on", others)),
      name.layer);
}

}  // namespace telens::features
