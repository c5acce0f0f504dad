#include "hooks/session/sink_fanout.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <variant>

#include "core/base/error.h"
#include "core/base/names.h"
#include "hooks/observer.h"
#include "hooks/session/logs.h"

namespace telens::debug {

// ---- rows that wait for step()

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

// ---- delivery

namespace {

std::vector<std::shared_ptr<ScalarLogger>> make_loggers(const InitializeOptions& options) {
  std::vector<std::shared_ptr<ScalarLogger>> loggers;
  if (options.statistics_logger) {
    loggers.push_back(options.statistics_logger);
  } else if (options.tb_writer) {
    loggers.push_back(options.tb_writer);
  }
  if (loggers.empty() || options.default_logging_enabled) {
    loggers.push_back(std::make_shared<StatisticsLog>(options.log_dir, options.rank));
  }
  return loggers;
}

}  // namespace

SinkFanout::SinkFanout(Sink& run_file, const record::NameTable& names,
                       const InitializeOptions& options, OnLoggerFailure on_logger_failure)
    : run_file_(run_file),
      names_(names),
      loggers_(make_loggers(options)),
      on_logger_failure_(std::move(on_logger_failure)) {}

void SinkFanout::deliver(const RecordedIteration& recorded) {
  recorded.for_each([this]<typename SessionRow>(const std::vector<SessionRow>& rows) {
    if (!rows.empty()) run_file_.rows(std::span<const SessionRow>(rows));
  });
  // Iterates over a copy: a logger that logs a tensor itself re-enters this function.
  const std::vector<std::shared_ptr<ScalarLogger>> loggers = loggers_;
  for (const std::shared_ptr<ScalarLogger>& logger : loggers) {
    if (std::ranges::find(loggers_, logger) == loggers_.end()) continue;  // failed meanwhile
    try {
      log(*logger, recorded);
    } catch (...) {
      rethrow_interruption();
      if (std::erase(loggers_, logger) == 0) continue;
      on_logger_failure_(
          fmt::format("a logger of statistics failed: {}; it is not called again in this session. "
                      "The run file is still written, and the training continues",
                      message_of_current_exception()));
    }
  }
}

void SinkFanout::log(ScalarLogger& logger, const RecordedIteration& recorded) const {
  for (const Row& row : recorded.of<Row>()) {
    if (!row.asked) continue;
    logger.log_scalar(row.series->logged_as(), row.value, row.iteration);
  }
  for (const record::Scalar& each : recorded.of<record::Scalar>()) {
    const std::string& name = names_.name(record::Dictionary::word, each.name);
    logger.log_scalar(name, each.value, each.iteration);
  }
  logger.flush();
}

}  // namespace telens::debug
