#include "features/run_file_sink.h"

#include <fmt/ranges.h>
#include <torch/version.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <string>
#include <utility>

#include "features/engine/rank_exchange.h"
#include "features/record/run_paths.h"
#include "features/statistics/statistic_name.h"
#include "hooks/builtin.h"

namespace telens::features {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

struct SharedRun {
  record::ClaimedRun run;
  std::string wanted;                 // the id that rank 0 gave, or was given
  std::vector<std::int64_t> refused;  // ranks whose files of that run are being written
};

// One run for all ranks. Rank 0 names it, since ranks that decide by themselves see different
// seconds and perhaps environments; a name that one rank cannot have is another one for all.
SharedRun shared_run(const debug::InitializeOptions& options) {
  constexpr std::int64_t kNotRefused = -1;
  SharedRun shared;
  const bool is_alone = !has_several_ranks(options.world);
  if (is_alone || options.world->getRank() == 0) {
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
      "rank {} of the run '{}' is being recorded already, by another process or by this one: this "
      "session records as the run '{}'; call init_process_group before debug.initialize, set RANK, "
      "or give each training a TELENS_RUN_ID of its own",
      fmt::join(shared.refused, ", "), shared.wanted, shared.run.run_id));
}

void check_recording(const debug::InitializeOptions& options) {
  record::RunOptions run;
  run.run_id = options.run_id;
  run.max_size = options.recording.max_size;
  record::check_options(run);
}

}  // namespace

RunFileSink::Ids RunFileSink::ids_of(const Series& series) {
  if (series.index >= ids_.size()) ids_.resize(series.index + 1);
  Ids& ids = ids_[series.index];
  if (ids.layer == record::kNoName) {
    const auto id = [&](record::Dictionary dictionary, const std::string& name) {
      return name.empty() ? record::kNoName : writer_->intern(dictionary, name);
    };
    ids.layer = writer_->intern(record::Dictionary::layer, series.layer);
    ids.tensor = id(record::Dictionary::tensor, series.tensor);
    ids.gemm = id(record::Dictionary::gemm, series.gemm);
    ids.statistic = id(record::Dictionary::statistic, series.statistic);
    ids.group = id(record::Dictionary::scope, series.group);
  }
  return ids;
}

record::Record RunFileSink::record_of(const Series& series, std::int64_t iteration, double value) {
  const Ids ids = ids_of(series);
  return {.iteration = iteration,
          .layer = ids.layer,
          .tensor = ids.tensor,
          .gemm = ids.gemm,
          .statistic = ids.statistic,
          .scope = ids.group,
          .value = value};
}

void RunFileSink::rows(std::span<const Row> rows) {
  std::vector<record::Record> records;
  records.reserve(rows.size());
  bool non_finite = false;
  for (const Row& row : rows) {
    records.push_back(record_of(*row.series, row.iteration, row.value));
    non_finite |= !std::isfinite(row.value) ||
                  (row.value > 0 && row.series->statistic == name_of(Statistic::nonfinite));
  }
  writer_->push(records);
  // The run may be about to die: what led to the first non-finite value must be on disk.
  if (non_finite && !std::exchange(non_finite_seen_, true)) writer_->flush_soon();
}

void RunFileSink::ledger(std::span<const LedgerEntry> entries) {
  std::vector<record::LedgerRow> rows;
  for (const LedgerEntry& each : entries) {
    rows.push_back({each.iteration, writer_->intern(record::Dictionary::layer, each.layer),
                    writer_->intern(record::Dictionary::gemm, each.gemm),
                    writer_->intern(record::Dictionary::word, each.entry),
                    writer_->intern(record::Dictionary::word, each.detail),
                    static_cast<double>(each.state)});
  }
  if (!rows.empty()) writer_->ledger(rows);
}

void RunFileSink::histograms(std::span<const HistogramRow> histograms) {
  std::vector<record::HistogramBin> bins;
  for (const HistogramRow& each : histograms) {
    const record::Record record =
        record_of(*each.series, each.iteration, static_cast<double>(each.elements));
    bins.clear();
    for (const auto& [bin, count] : each.bins) {
      bins.push_back({bin, static_cast<std::uint64_t>(count)});
    }
    writer_->histogram(record, bins);
  }
}

void RunFileSink::blocks(std::span<const BlockValue> blocks) {
  std::vector<record::BlockRow> rows;
  for (const BlockValue& each : blocks) {
    const Ids ids = ids_of(*each.series);
    rows.push_back({each.iteration, ids.layer, ids.tensor, ids.gemm, ids.statistic,
                    static_cast<std::int32_t>(each.block_row),
                    static_cast<std::int32_t>(each.block_column), each.value});
  }
  writer_->blocks(rows);
}

void RunFileSink::scalar(std::int64_t iteration, std::string_view name, double value) {
  writer_->scalar(iteration, name, value);
}

void RunFileSink::event(std::int64_t iteration, std::string_view kind, std::string_view text,
                        std::string_view layer) {
  const std::int32_t id =
      layer.empty() ? record::kNoName : writer_->intern(record::Dictionary::layer, layer);
  writer_->event(iteration, kind, text, id);
}

}  // namespace telens::features

namespace telens {

void accept_on_all_ranks(const debug::InitializeOptions& options,
                         const std::function<void()>& accept) {
  std::exception_ptr refusal;
  try {
    accept();
    features::check_recording(options);
  } catch (...) {
    refusal = std::current_exception();
  }
  // A rank that left here would be waited for where the ranks agree on a run id.
  std::vector<std::int64_t> refusals;
  if (has_several_ranks(options.world)) {
    refusals = features::gather_notes(refusal ? 1 : 0, *options.world);
  }
  if (refusal) std::rethrow_exception(refusal);
  const auto refused = std::ranges::find(refusals, 1);
  if (refused != refusals.end()) {
    raise<UsageError>(
        "debug.initialize: expected all ranks to accept it, and rank {} refused; mend what its own "
        "error names",
        refused - refusals.begin());
  }
}

std::unique_ptr<Sink> make_run_file_sink(const debug::InitializeOptions& options,
                                         const std::string& config_text,
                                         std::function<void(const std::string&)> on_error) {
  record::RunOptions run;
  run.log_dir = options.log_dir;
  run.rank = options.rank;
  run.world_size = options.world_size;
  run.config_text = config_text;
  run.environment = {
      {"host", features::host_name()}, {"telens", TELENS_VERSION}, {"torch", TORCH_VERSION}};
  run.on_full = options.recording.block_when_full ? record::OnFull::block : record::OnFull::drop;
  run.max_size = options.recording.max_size;
  run.on_warning = on_error;
  run.on_error = on_error;
  features::SharedRun shared = features::shared_run(options);
  features::tell_of_another_run_id(shared, on_error);
  run.run_id = shared.run.run_id;
  run.claim = std::move(shared.run.claim);
  return std::make_unique<features::RunFileSink>(record::RunWriter::open(run));
}

}  // namespace telens
