#include "hooks/delivery.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/interruption.h"
#include "hooks/feature_failure.h"
#include "hooks/text_log.h"

namespace telens::debug {
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

Delivery::Delivery(std::unique_ptr<Sink> run_file, const InitializeOptions& options,
                   OnLoggerFailure on_logger_failure)
    : run_file_(std::move(run_file)),
      loggers_(make_loggers(options)),
      on_logger_failure_(std::move(on_logger_failure)) {}

void Delivery::deliver(const Logged& logged) {
  run_file_->rows(logged.rows);
  run_file_->ledger(logged.ledger);
  run_file_->histograms(logged.histograms);
  run_file_->blocks(logged.blocks);
  for (const NamedScalar& each : logged.scalars) {
    run_file_->scalar(each.iteration, each.name, each.value);
  }
  // Over a copy: a logger that logs a tensor itself comes back here.
  const std::vector<std::shared_ptr<ScalarLogger>> loggers = loggers_;
  for (const std::shared_ptr<ScalarLogger>& logger : loggers) {
    if (std::ranges::find(loggers_, logger) == loggers_.end()) continue;  // failed meanwhile
    try {
      log(logger, logged);
    } catch (...) {
      let_interruptions_pass();
      if (std::erase(loggers_, logger) == 0) continue;
      on_logger_failure_(
          fmt::format("a logger of statistics failed: {}; it is not called any more in this "
                      "session, the run file is written as ever and training goes on",
                      message_of_current_exception()));
    }
  }
}

void Delivery::log(const std::shared_ptr<ScalarLogger>& logger, const Logged& logged) {
  for (const Row& row : logged.rows) {
    if (!row.asked) continue;
    logger->log_scalar(row.series->logged_as, row.value, row.iteration);
  }
  for (const NamedScalar& each : logged.scalars) {
    logger->log_scalar(each.name, each.value, each.iteration);
  }
  logger->flush();
}

void Delivery::close() {
  loggers_.clear();
  run_file_->close();
}

}  // namespace telens::debug
