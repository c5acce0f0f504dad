// Records to disk per second, and how long step() takes with 1,000 records.
//   recorder --write <folder>    leaves a run of 10^7 records there, for benchmarks of its readers
#include <ATen/ATen.h>

#include <filesystem>
#include <random>

#include "benchmarks/arguments.h"
#include "benchmarks/sessions.h"
#include "benchmarks/side_by_side.h"
#include "core/modules/linear/linear.h"
#include "core/quantization/autocast.h"
#include "record/run_writer.h"

namespace {

using telens::record::Dictionary;
using telens::record::Record;

constexpr int kLayers = 32, kTensors = 6, kStatistics = 19;

// The records of one iteration: each value as random as a statistic's last digits are.
std::vector<Record> an_iteration(telens::record::RunWriter& writer, std::mt19937_64& random) {
  std::lognormal_distribution<double> value;
  std::vector<Record> records;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      for (int statistic = 0; statistic < kStatistics; ++statistic) {
        Record record;
        record.layer = writer.intern(Dictionary::layer, fmt::format("layers.{}", layer));
        record.tensor = writer.intern(Dictionary::tensor, fmt::format("tensor {}", tensor));
        record.statistic =
            writer.intern(Dictionary::statistic, fmt::format("statistic {}", statistic));
        record.value = value(random);
        records.push_back(record);
      }
    }
  }
  return records;
}

// Seconds per record, from the first push until all is on disk in a run in the folder.
double seconds_per_record(const std::string& folder, std::int64_t count) {
  telens::record::RunOptions options;
  options.log_dir = folder;
  options.on_full = telens::record::OnFull::block;
  const auto writer = telens::record::RunWriter::open(options);
  std::mt19937_64 random(1);
  std::vector<Record> records = an_iteration(*writer, random);
  const auto per_iteration = static_cast<std::int64_t>(records.size());
  const std::int64_t iterations = (count + per_iteration - 1) / per_iteration;

  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t iteration = 0; iteration < iterations; ++iteration) {
    for (Record& record : records) {
      record.iteration = iteration;
      record.value *= 1.0000001;
    }
    writer->push(records);
  }
  writer->flush();
  const double seconds = telens::benchmark::seconds_since(start);
  writer->close();
  const auto written = writer->counters().written;
  if (written < static_cast<std::uint64_t>(iterations * per_iteration)) {
    telens::raise<telens::Error>("only {} of {} records were written", written,
                                 iterations * per_iteration);
  }
  return seconds / static_cast<double>(iterations * per_iteration);
}

// A model of tiny layers whose statistics are at least 1,000 records an iteration.
class ManyRecords {
 public:
  ManyRecords() : x_(at::randn({16, 16}).to(at::kBFloat16).requires_grad_()) {
    for (int i = 0; i < 12; ++i) {
      telens::LinearOptions options;
      options.in_features = options.out_features = 16;
      options.parameters.params_dtype = at::kBFloat16;
      options.parameters.device = at::Device(at::kCPU);
      options.name = fmt::format("layers.{}", i);
      layers_.push_back(std::make_shared<telens::Linear>(options));
    }
  }

  void forward_and_backward() {
    at::Tensor y = x_;
    {
      telens::Autocast region;
      for (const auto& layer : layers_) y = layer->forward(y);
      region.exit();
    }
    y.sum().backward();
  }

 private:
  std::vector<std::shared_ptr<telens::Linear>> layers_;
  at::Tensor x_;
};

std::vector<double> seconds_of_step(const std::string& folder, int rounds) {
  ManyRecords model;
  telens::benchmark::begin_session(telens::benchmark::all_statistics(), folder);
  std::vector<double> samples;
  for (int round = -2; round < rounds; ++round) {
    model.forward_and_backward();
    const auto start = std::chrono::steady_clock::now();
    telens::debug::step();
    if (round >= 0) samples.push_back(telens::benchmark::seconds_since(start));
  }
  telens::debug::end_debug();
  return samples;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--write") {
    seconds_per_record(argv[2], 10'000'000);
    return 0;
  }
  const auto arguments = telens::benchmark::parse_arguments(argc, argv, "The recorder.");
  // A round is a million records; few rounds are enough, long enough to be held back by the disk.
  std::vector<double> per_record;
  for (int i = 0; i < std::max(1, arguments.rounds / 4); ++i) {
    const std::string folder = arguments.folder + "/records";
    per_record.push_back(seconds_per_record(folder, 4'000'000));
    std::filesystem::remove_all(folder);
  }
  telens::benchmark::print_samples("seconds per record", {"telens"}, {per_record});
  telens::benchmark::print_samples("step", {"telens"},
                                   {seconds_of_step(arguments.folder, 10 * arguments.rounds)});
  return 0;
}
