// Writes the data that a session records to the run file of this rank.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/sink.h"
#include "record/rows/names.h"
#include "record/run_writer.h"

namespace telens::features {

// Maps ids of a session to ids of its run file, which numbers names in the order of their first use
// in the file. One thread at a time.
class FileIds {
 public:
  FileIds(record::NameTable& names, record::RunWriter& writer) : names_(names), writer_(writer) {}

  std::int32_t id(record::Dictionary dictionary, std::int32_t session_id);
  record::Record record(const Series& series, std::int64_t iteration, double value);

 private:
  struct SeriesIds {
    std::int32_t layer = record::kNoName;  // kNoName if not requested yet
    std::int32_t tensor = record::kNoName;
    std::int32_t gemm = record::kNoName;
    std::int32_t statistic = record::kNoName;
    std::int32_t scope = record::kNoName;
  };

  record::NameTable& names_;
  record::RunWriter& writer_;
  std::array<std::vector<std::int32_t>, record::kDictionaries> ids_;  // by session id
  std::vector<SeriesIds> of_series_;                                  // by Series::index
};

class RunFileSink final : public Sink {
 public:
  void check(const debug::InitializeOptions& options) const override;
  std::string name_run(const debug::InitializeOptions& options) const override;
  // Calls the context's on_error when recording stops.
  void begin(const RunContext& context) override;
  void rows(const SomeSessionRows& rows) override;
  void end(std::string_view exception) override;
  void flush() override { writer_->flush(); }
  std::string path() const override { return writer_->path(); }

 private:
  void write(std::span<const Row> rows);
  void write(std::span<const HistogramRow> histograms);
  template <typename TableRow>
  void write(std::span<const TableRow> rows);

  std::unique_ptr<record::RunWriter> writer_;
  bool non_finite_seen_ = false;

  std::mutex mutex_;  // guards the members below
  std::unique_ptr<FileIds> ids_;
};

}  // namespace telens::features
