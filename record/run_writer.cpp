#include "record/run_writer.h"

#include "record/run_paths.h"
#include "record/run_writer_impl.h"
#include "record/wall_clock.h"

namespace telens::record {

RunWriter::RunWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RunWriter::~RunWriter() = default;

void check_options(const RunOptions& options) {
  check_run_id(options.run_id);
  if (options.max_size > 0 && options.max_size < kLeastMaxSize) {
    raise<UsageError>(
        "recording: max_size {} is too small; expected at least {} bytes, or 0 for no "
        "limit",
        options.max_size, kLeastMaxSize);
  }
}

std::unique_ptr<RunWriter> RunWriter::open(const RunOptions& options) {
  check_options(options);
  return std::unique_ptr<RunWriter>(new RunWriter(std::make_unique<Impl>(options)));
}

std::int32_t RunWriter::intern(Dictionary dictionary, std::string_view name) {
  return impl_->intern(dictionary, name);
}

void RunWriter::push(std::span<const Record> records) { impl_->push(records); }

void RunWriter::push(const SomeRows& rows) {
  std::visit([this](auto some) { impl_->push_together(some); }, rows);
}

void RunWriter::histogram(const Record& record, std::span<const HistogramBin> bins) {
  impl_->enqueue(1 + bins.size(), impl_->capacity(), record.iteration, [&](Batch& batch) {
    auto& records = batch.of<Record>();
    const auto row = static_cast<std::int64_t>(records.size());
    records.push_back(record);
    for (const auto& [bin, count] : bins) batch.of<BinRow>().push_back({row, bin, count});
  });
}

void RunWriter::scalar(std::int64_t iteration, std::string_view name, double value) {
  impl_->enqueue_one<Scalar>(iteration, [&] {
    return Scalar{.iteration = iteration,
                  .name = impl_->intern_locked(Dictionary::word, name),
                  .value = value};
  });
}

void RunWriter::event(std::int64_t iteration, std::string_view kind, std::string_view text,
                      std::int32_t layer) {
  impl_->enqueue_one<Event>(iteration, [&] {
    return Event{.time = seconds_since_1970(),
                 .iteration = iteration,
                 .kind = impl_->intern_locked(Dictionary::word, kind),
                 .text = impl_->intern_locked(Dictionary::word, text),
                 .layer = layer};
  });
}

void RunWriter::flush() { impl_->flush(); }
void RunWriter::flush_soon() { impl_->flush_soon(); }
void RunWriter::close(End end, const std::string& reason) { impl_->close(end, reason); }
bool RunWriter::recording() const { return impl_->recording(); }
std::string RunWriter::error() const { return impl_->error(); }
const std::string& RunWriter::path() const { return impl_->path(); }
const std::string& RunWriter::run_id() const { return impl_->run_id(); }
Counters RunWriter::counters() const { return impl_->counters(); }

}  // namespace telens::record
