#include "inspector_cli/bisect/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/printable.h"
#include "inspector_cli/bisect/minimal_set.h"

namespace telens::cli {
namespace {

std::set<Gemm> get_all_gemms(const Candidate& candidate) {
  std::set<Gemm> gemms;
  for (const LowGemm& each : candidate.gemms) gemms.insert(each.gemm);
  return gemms;
}

// A layer of which all low GEMMs are chosen runs in high precision as a whole.
std::set<Gemm> widened(const std::set<Gemm>& gemms, const Candidate& candidate) {
  if (gemms != get_all_gemms(candidate)) return gemms;
  return {kAllGemms.begin(), kAllGemms.end()};
}

}  // namespace

Search::Search(Trials& trials, std::vector<Candidate> candidates, Depth depth, Tell tell)
    : trials_(trials), candidates_(std::move(candidates)), depth_(depth), tell_(std::move(tell)) {}

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
  tell_(fmt::format("layers, {} of them", candidates_.size()));
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

// Layer after layer, while the others stay as far as they are known. Mostly one GEMM is enough, and
// layers fail alike: each is tried alone, first those that the layer before has needed.
Search::Entries Search::needed_gemms(const Entries& layers) {
  Entries found, left = layers;
  std::set<Gemm> usual;
  while (!left.empty()) {
    const Entry layer = left.front();
    left.erase(left.begin());
    tell_(fmt::format("GEMMs of {}", printable(candidates_[layer.layer].layer)));
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

// Asks for each entry whether the others do without it. That none may go is sure only where more in
// high precision never makes a run fail; then nothing is dropped here.
void Search::drop_superfluous(Entries& entries, SearchResult& result) {
  tell_("whether each entry is needed");
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

// A GEMM in high precision whose one operand is cast: where that fails, the operand has to stay.
void Search::find_operands(const Entries& entries, SearchResult& result) {
  tell_("operands");
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Gemm gemm = *entries[i].gemms.begin();
    const Candidate& candidate = candidates_[entries[i].layer];
    const auto low = std::ranges::find(candidate.gemms, gemm, &LowGemm::gemm);
    Needed& needed = result.needed[i];
    if (low->formats.empty()) {
      needed.about_tensors = "no format is known to cast its operands alone";
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
          "neither operand alone: both casts together, or a scale that its tensor's own amax "
          "would not give";
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
