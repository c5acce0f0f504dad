#include "inspector_cli/bisect/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/text.h"

namespace telens::cli {
namespace {

// Returns the first `length` items and the needed items in list order.
std::vector<std::size_t> with_prefix(const std::vector<std::size_t>& needed, std::size_t length) {
  std::vector<std::size_t> items(length);
  std::iota(items.begin(), items.end(), std::size_t{0});
  items.insert(items.end(), needed.rbegin(), needed.rend());  // found last to first
  return items;
}

// Returns the next prefix length to test, between the shortest that may pass and the shortest known
// to pass. The last of k items at random positions is expected at k / (k + 1) of the list, so the
// cut is slightly after the middle.
std::size_t cut(std::size_t shortest, std::size_t passing) {
  constexpr std::size_t kPart = 11, kOf = 20;
  return shortest + (passing - 1 - shortest) * kPart / kOf;
}

std::set<Gemm> get_all_gemms(const Candidate& candidate) {
  std::set<Gemm> gemms;
  for (const LowGemm& each : candidate.gemms) gemms.insert(each.gemm);
  return gemms;
}

// Returns all GEMMs of the layer if all its low-precision GEMMs are chosen.
std::set<Gemm> widened(const std::set<Gemm>& gemms, const Candidate& candidate) {
  if (gemms != get_all_gemms(candidate)) return gemms;
  return {kAllGemms.begin(), kAllGemms.end()};
}

}  // namespace

std::vector<std::size_t> minimal_set(std::size_t count, const PassesWith& passes) {
  std::vector<std::size_t> needed;
  std::size_t passing = count;  // length of a prefix that passes with the needed items
  while (passing > 0) {
    std::size_t shortest = 1;
    while (shortest < passing) {
      const std::size_t length = cut(shortest, passing);
      if (passes(with_prefix(needed, length))) {
        passing = length;
      } else {
        shortest = length + 1;
      }
    }
    needed.push_back(--passing);
    if (passing > 0 && passes(with_prefix(needed, 0))) break;
  }
  return needed;
}

Search::Search(Trials& trials, std::vector<Candidate> candidates, Depth depth,
               ReportStage report_stage)
    : trials_(trials),
      candidates_(std::move(candidates)),
      depth_(depth),
      report_stage_(std::move(report_stage)) {}

Choice Search::make_choice(const Entries& entries) const {
  Choice choice;
  for (const Entry& entry : entries) {
    choice.high[candidates_[entry.layer].layer].insert(entry.gemms.begin(), entry.gemms.end());
  }
  for (const Entry& entry : entries) {
    std::set<Gemm>& gemms = choice.high[candidates_[entry.layer].layer];
    gemms = widened(gemms, candidates_[entry.layer]);
  }
  return choice;
}

bool Search::passes(const Entries& entries) { return trials_.run(make_choice(entries)).passed; }

std::string Search::make_label(const Entry& entry) const {
  const std::string& layer = candidates_[entry.layer].layer;
  return entry.gemms.size() == 1 ? telens::cli::make_label(layer, *entry.gemms.begin())
                                 : printable(layer);
}

Search::Entries Search::needed_layers() {
  report_stage_(fmt::format("{} layers", candidates_.size()));
  const auto list_entries = [this](const std::vector<std::size_t>& items) {
    Entries entries;
    for (const std::size_t each : items)
      entries.push_back({each, get_all_gemms(candidates_[each])});
    return entries;
  };
  auto items = minimal_set(candidates_.size(), [&](const std::vector<std::size_t>& some) {
    return passes(list_entries(some));
  });
  std::ranges::sort(items);
  return list_entries(items);
}

// Searches one layer after the other; the other layers keep their known needed GEMMs. Usually one
// GEMM is enough and layers fail in the same way, so single GEMMs are tried first, beginning with
// those that the previous layer needed.
Search::Entries Search::needed_gemms(const Entries& layers) {
  Entries found, left = layers;
  std::set<Gemm> usual;
  while (!left.empty()) {
    const Entry layer = left.front();
    left.erase(left.begin());
    report_stage_(fmt::format("GEMMs of {}", printable(candidates_[layer.layer].layer)));
    std::vector<Gemm> gemms(layer.gemms.begin(), layer.gemms.end());
    std::ranges::stable_partition(gemms, [&](Gemm gemm) { return usual.contains(gemm); });
    const auto list_entries = [&](const std::vector<std::size_t>& items) {
      Entries entries;
      for (const std::size_t each : items) entries.push_back({layer.layer, {gemms[each]}});
      return entries;
    };
    const auto enough = [&](const std::vector<std::size_t>& some) {
      Entries entries = list_entries(some);
      entries.insert(entries.end(), found.begin(), found.end());
      entries.insert(entries.end(), left.begin(), left.end());
      return passes(entries);
    };
    std::vector<std::size_t> needed;
    for (std::size_t i = 0; gemms.size() > 1 && i < gemms.size() && needed.empty(); ++i) {
      if (enough({i})) needed = {i};
    }
    if (needed.empty()) needed = minimal_set(gemms.size(), enough);
    usual.clear();
    for (const std::size_t each : needed) usual.insert(gemms[each]);
    for (const Gemm gemm : usual) found.push_back({layer.layer, {gemm}});
  }
  return found;
}

// Drops entries without which a run still passes. They exist only if adding GEMMs in high precision
// made a run fail.
void Search::drop_superfluous(Entries& entries, SearchResult& result) {
  report_stage_("whether each entry is needed");
  for (std::size_t i = 0; i < entries.size();) {
    Entries others = entries;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    if (others.empty() || !passes(others)) {
      ++i;
      continue;
    }
    result.superfluous.push_back(make_label(entries[i]));
    entries = std::move(others);
    i = 0;
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    Entries others = entries;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    const Trial& without = trials_.run(make_choice(others));
    result.needed.push_back(
        {candidates_[entries[i].layer].layer, entries[i].gemms, without.number, without.reason});
  }
}

// Finds the operands that need high precision: those whose cast makes a run fail although the GEMM
// runs in high precision.
void Search::find_operands(const Entries& entries, SearchResult& result) {
  report_stage_("operands");
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Gemm gemm = *entries[i].gemms.begin();
    const Candidate& candidate = candidates_[entries[i].layer];
    const auto low = std::ranges::find(candidate.gemms, gemm, &LowGemm::gemm);
    Needed& needed = result.needed[i];
    if (low->formats.empty()) {
      needed.about_tensors = "FakeQuant does not support the format of its operands";
      continue;
    }
    Entries others = entries;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    for (const auto& [tensor, format] : low->formats) {
      Choice choice = make_choice(others);
      choice.cast = CastOperand{candidate.layer, gemm, tensor, format};
      if (!trials_.run(choice).passed) needed.tensors.push_back(tensor);
    }
    if (needed.tensors.empty()) {
      needed.about_tensors =
          "neither operand by itself: both casts together, or a scale that differs from the "
          "tensor's own amax";
    }
  }
}

SearchResult Search::find() {
  SearchResult result;
  Entries entries = needed_layers();
  if (depth_ != Depth::layer) entries = needed_gemms(entries);
  drop_superfluous(entries, result);
  result.choice = make_choice(entries);
  result.passed_run = trials_.run(result.choice).number;
  if (depth_ == Depth::tensor) find_operands(entries, result);
  return result;
}

}  // namespace telens::cli
