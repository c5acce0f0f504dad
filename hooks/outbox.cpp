#include "hooks/outbox.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "core/base/names.h"

namespace telens::debug {
namespace {

// The parts of "<layer>_<tensor>_<statistic>"; empty for another name. Of several words that name a
// tensor the last one counts: layers are called after weights, statistics after nothing.
std::optional<SeriesTable::Names> names_in(std::string_view name) {
  std::optional<SeriesTable::Names> names;
  std::size_t last = 0;
  for (const TensorName tensor : kAllTensors) {
    const std::string middle = fmt::format("_{}_", telens::name_of(tensor));
    const std::size_t at = name.rfind(middle);
    if (at == name.npos || at <= last || at + middle.size() == name.size()) continue;
    last = at;
    names = {.layer = name.substr(0, at),
             .tensor = telens::name_of(tensor),
             .statistic = name.substr(at + middle.size())};
  }
  return names;
}

}  // namespace

void Outbox::add(const Row& row) {
  const std::lock_guard lock(mutex_);
  logged_.rows.push_back(row);
}

void Outbox::add(LedgerEntry entry) {
  const std::lock_guard lock(mutex_);
  logged_.ledger.push_back(std::move(entry));
}

void Outbox::add(HistogramRow histogram) {
  const std::lock_guard lock(mutex_);
  logged_.histograms.push_back(std::move(histogram));
}

void Outbox::add(const BlockValue& block) {
  const std::lock_guard lock(mutex_);
  logged_.blocks.push_back(block);
}

void Outbox::add(std::string_view name, double value, std::int64_t iteration) {
  const std::optional<SeriesTable::Names> names = names_in(name);
  const std::lock_guard lock(mutex_);
  if (names) {
    logged_.rows.push_back({iteration, &series_.find_or_add(*names), value});
  } else {
    logged_.scalars.push_back({std::string(name), value, iteration});
  }
}

Logged Outbox::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(logged_, {});
}

}  // namespace telens::debug
