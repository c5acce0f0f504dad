#include "hooks/session/pending_records.h"

#include <fmt/format.h>

#include <optional>
#include <span>
#include <utility>
#include <variant>

#include "core/base/names.h"

namespace telens::debug {
namespace {

// Splits "<layer>_<tensor>_<statistic>" into its parts; empty for any other name. If several words
// name a tensor, the last one counts: layers are often named after weights, statistics never after
// tensors.
std::optional<SeriesTable::Names> names_in(std::string_view name) {
  std::optional<SeriesTable::Names> names;
  std::size_t last = 0;
  for (const TensorName tensor : kLinearTensors) {
    const std::string middle = fmt::format("_{}_", telens::get_name(tensor));
    const std::size_t at = name.rfind(middle);
    if (at == name.npos || at <= last || at + middle.size() == name.size()) continue;
    last = at;
    names = {.layer = name.substr(0, at),
             .tensor = telens::get_name(tensor),
             .statistic = name.substr(at + middle.size())};
  }
  return names;
}

}  // namespace

void PendingRecords::add(const record::SomeRows& rows) {
  const std::lock_guard lock(mutex_);
  std::visit(
      [this]<typename TableRow>(std::span<const TableRow> some) {
        auto& list = rows_.of<TableRow>();
        list.insert(list.end(), some.begin(), some.end());
      },
      rows);
}

void PendingRecords::add(std::string_view name, double value, std::int64_t iteration) {
  if (const std::optional<SeriesTable::Names> names = names_in(name)) {
    add(Row{iteration, &series_.find_or_add(*names), value});
  } else {
    add(record::Scalar{.iteration = iteration,
                       .name = series_.names().id(record::Dictionary::word, name),
                       .value = value});
  }
}

RecordedIteration PendingRecords::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(rows_, {});
}

}  // namespace telens::debug
