#include "features/run_file_sink.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <variant>

#include "core/base/version.h"
#include "hooks/rank_group.h"
#include "hooks/session_options.h"
#include "hooks/statistics/catalogue.h"
#include "record/run_paths.h"

namespace telens::features {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

struct SharedRun {
  record::ClaimedRun run;
  std::string wanted;                 // the id that rank 0 chose or received
  std::vector<std::int64_t> refused;  // ranks whose files of that run are being written
};

// One run for all ranks. Rank 0 names it, because ranks that decide separately see different
// seconds and perhaps environments. If a rank cannot use the name, all ranks use another name.
SharedRun shared_run(const debug::InitializeOptions& options) {
  constexpr std::int64_t kNotRefused = -1;
  SharedRun shared;
  const bool is_alone = !has_several_ranks(options.world);
  if (is_alone || options.world->rank() == 0) {
    shared.wanted = record::decide_run_id(options.log_dir, options.run_id);
  }
  if (!is_alone) shared.wanted = gather_texts(shared.wanted, *options.world).front();
  for (int number = 1;; ++number) {
    std::string id = record::numbered_run_id(shared.wanted, number);
    auto claim = record::RankClaim::take(record::run_folder(options.log_dir, id), options.rank);
    const std::int64_t own = claim ? kNotRefused : options.rank;
    auto refused = is_alone ? std::vector{own} : gather_notes(own, *options.world);
    std::erase(refused, kNotRefused);
    if (refused.empty()) {
      shared.run = {std::move(id), std::move(claim)};
      return shared;
    }
    if (number == 1) shared.refused = std::move(refused);
  }
}

void tell_of_another_run_id(const SharedRun& shared,
                            const std::function<void(const std::string&)>& tell) {
  if (shared.refused.empty()) return;
  tell(fmt::format(
      "rank {} of the run '{}' is already being recorded, by another process or by this one: this "
      "session records as the run '{}'; call init_process_group before debug.initialize, set RANK, "
      "or set a different TELENS_RUN_ID for each training",
      fmt::join(shared.refused, ", "), shared.wanted, shared.run.run_id));
}

record::RunOptions run_options(const RunContext& context) {
  const debug::InitializeOptions& options = context.options;
  record::RunOptions run;
  run.log_dir = options.log_dir;
  run.rank = options.rank;
  run.world_size = options.world_size;
  run.config_text = context.config_text;
  run.environment = {{"host", host_name()},
                     {"telens", std::string(kVersion)},
                     {"torch", std::string(torch_version())}};
  run.on_full = options.recording.block_when_full ? record::OnFull::block : record::OnFull::drop;
  run.max_size = options.recording.max_size;
  run.on_warning = context.on_error;
  run.on_error = context.on_error;
  SharedRun shared = shared_run(options);
  tell_of_another_run_id(shared, context.on_other_run_id);
  run.run_id = shared.run.run_id;
  run.claim = std::move(shared.run.claim);
  return run;
}

}  // namespace

std::int32_t FileIds::id(record::Dictionary dictionary, std::int32_t session_id) {
  if (session_id == record::kNoName) return record::kNoName;
  auto& known = ids_[static_cast<std::size_t>(dictionary)];
  const auto index = static_cast<std::size_t>(session_id);
  if (index >= known.size()) known.resize(index + 1, record::kNoName);
  if (known[index] == record::kNoName) {
    known[index] = writer_.intern(dictionary, names_.name(dictionary, session_id));
  }
  return known[index];
}

record::Record FileIds::record(const Series& series, std::int64_t iteration, double value) {
  if (series.index >= of_series_.size()) of_series_.resize(series.index + 1);
  SeriesIds& names = of_series_[series.index];
  if (names.layer == record::kNoName) {
    const auto id = [&](record::Dictionary dictionary, const std::string& name) {
      return name.empty() ? record::kNoName : writer_.intern(dictionary, name);
    };
    names.layer = writer_.intern(record::Dictionary::layer, series.layer);
    names.tensor = id(record::Dictionary::tensor, series.tensor);
    names.gemm = id(record::Dictionary::gemm, series.gemm);
    names.statistic = id(record::Dictionary::statistic, series.statistic);
    names.scope = id(record::Dictionary::scope, series.group);
  }
  return {.iteration = iteration,
          .layer = names.layer,
          .tensor = names.tensor,
          .gemm = names.gemm,
          .statistic = names.statistic,
          .scope = names.scope,
          .value = value};
}

void RunFileSink::check(const debug::InitializeOptions& options) const {
  record::RunOptions run;
  run.run_id = options.run_id;
  run.max_size = options.recording.max_size;
  record::check_options(run);
}

std::string RunFileSink::name_run(const debug::InitializeOptions& options) const {
  return record::decide_run_id(options.log_dir, options.run_id);
}

void RunFileSink::begin(const RunContext& context) {
  writer_ = record::RunWriter::open(run_options(context));
  ids_ = std::make_unique<FileIds>(context.names, *writer_);
}

void RunFileSink::rows(const SomeSessionRows& rows) {
  std::visit([this](auto some) { write(some); }, rows);
}

void RunFileSink::write(std::span<const Row> rows) {
  std::vector<record::Record> records;
  records.reserve(rows.size());
  bool non_finite = false;
  static const std::string& counter = statistic("nonfinite")->name;
  {
    const std::lock_guard lock(mutex_);
    for (const Row& row : rows) {
      records.push_back(ids_->record(*row.series, row.iteration, row.value));
      non_finite |=
          !std::isfinite(row.value) || (row.value > 0 && row.series->statistic == counter);
    }
  }
  writer_->push(records);
  // The run may be about to crash: the data that led to the first non-finite value must be on disk.
  if (non_finite && !std::exchange(non_finite_seen_, true)) writer_->flush_soon();
}

void RunFileSink::write(std::span<const HistogramRow> histograms) {
  for (const HistogramRow& each : histograms) {
    std::unique_lock lock(mutex_);
    const record::Record record =
        ids_->record(*each.series, each.iteration, static_cast<double>(each.elements));
    lock.unlock();
    writer_->histogram(record, each.bins);
  }
}

template <typename TableRow>
void RunFileSink::write(std::span<const TableRow> rows) {
  std::vector<TableRow> translated(rows.begin(), rows.end());
  {
    const std::lock_guard lock(mutex_);
    for (TableRow& row : translated) {
      record::for_each_name<TableRow>([&](const auto& column) {
        row.*column.member = ids_->id(*column.dictionary, row.*column.member);
      });
    }
  }
  writer_->push(std::span<const TableRow>(translated));
}

void RunFileSink::end(std::string_view exception) {
  if (exception.empty()) {
    writer_->close();
  } else {
    writer_->close(record::End::exception, std::string(exception));
  }
}

}  // namespace telens::features
