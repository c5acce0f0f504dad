// Hands what a session observes to the run file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "features/record/run_writer.h"
#include "hooks/sink.h"

namespace telens::features {

class RunFileSink final : public Sink {
 public:
  explicit RunFileSink(std::unique_ptr<record::RunWriter> writer) : writer_(std::move(writer)) {}

  void rows(std::span<const Row> rows) override;
  void ledger(std::span<const LedgerEntry> entries) override;
  void histograms(std::span<const HistogramRow> histograms) override;
  void blocks(std::span<const BlockValue> blocks) override;
  void scalar(std::int64_t iteration, std::string_view name, double value) override;
  void event(std::int64_t iteration, std::string_view kind, std::string_view text,
             std::string_view layer) override;
  void close() override { writer_->close(); }
  void flush() override { writer_->flush(); }
  void end_by_exception(std::string_view name) override {
    writer_->close(record::End::exception, std::string(name));
  }
  std::string path() const override { return writer_->path(); }

 private:
  // The file's ids of a series' names.
  struct Ids {
    std::int32_t layer = record::kNoName;  // kNoName: not asked for yet
    std::int32_t tensor = record::kNoName;
    std::int32_t gemm = record::kNoName;
    std::int32_t statistic = record::kNoName;
    std::int32_t group = record::kNoName;
  };
  Ids ids_of(const Series& series);
  record::Record record_of(const Series& series, std::int64_t iteration, double value);

  std::unique_ptr<record::RunWriter> writer_;
  std::vector<Ids> ids_;  // by Series::index
  bool non_finite_seen_ = false;
};

}  // namespace telens::features
