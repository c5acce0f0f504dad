#include "hooks/session/sink_fanout.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "hooks/feature_failure.h"
#include "hooks/session/text_log.h"

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
