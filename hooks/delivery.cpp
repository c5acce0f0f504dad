#include "hooks/delivery.h"

#include <utility>

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

Delivery::Delivery(std::unique_ptr<Sink> run_file, const InitializeOptions& options)
    : run_file_(std::move(run_file)), loggers_(make_loggers(options)) {}

void Delivery::deliver(const Logged& logged) {
  run_file_->rows(logged.rows);
  run_file_->ledger(logged.ledger);
  run_file_->histograms(logged.histograms);
  run_file_->blocks(logged.blocks);
  for (const NamedScalar& each : logged.scalars) {
    run_file_->scalar(each.iteration, each.name, each.value);
  }
  for (const std::shared_ptr<ScalarLogger>& logger : loggers_) {
    for (const Row& row : logged.rows) {
      if (!row.asked) continue;
      logger->log_scalar(row.series->logged_as, row.value, row.iteration);
    }
    for (const NamedScalar& each : logged.scalars) {
      logger->log_scalar(each.name, each.value, each.iteration);
    }
    logger->flush();
  }
}

}  // namespace telens::debug
