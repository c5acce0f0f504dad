// Writes the run that the tests of the command read: write_run LOG_DIR RUN_ID [ITERATIONS [RANK
// [RANKS]]]. It has the files of RANKS ranks from RANK on, with equal content.
//
// Four layers, each with an activation and a gradient. In iteration 30 the activation of
// layers.2.fc1 becomes non-finite, after its FP8 cast has overflowed from iteration 25 on;
// layers.3.fc1 follows in 32. With ITERATIONS 0 the run is empty. With ITERATIONS -1 the program
// waits to be killed after iteration 40.
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "record/run_writer.h"

namespace {

using namespace telens::record;

class Iteration {
 public:
  Iteration(RunWriter& writer, std::int64_t number) : writer_(writer), number_(number) {}
  ~Iteration() { writer_.push(records_); }

  void add(const std::string& layer, const std::string& tensor, const std::string& gemm,
           const std::string& statistic, double value) {
    records_.push_back({number_, writer_.intern(Dictionary::layer, layer),
                        writer_.intern(Dictionary::tensor, tensor),
                        gemm.empty() ? kNoName : writer_.intern(Dictionary::gemm, gemm),
                        writer_.intern(Dictionary::statistic, statistic), kNoName, value});
  }

 private:
  RunWriter& writer_;
  std::int64_t number_;
  std::vector<Record> records_;
};

void add_layer(Iteration& records, std::int64_t i, int number) {
  const std::string layer = "layers." + std::to_string(number) + ".fc1";
  const bool bad = (number == 2 && i >= 30) || (number == 3 && i >= 32);
  const double amax = 1.0 + number;
  records.add(layer, "activation", "", "nonfinite", bad ? 3 : 0);
  records.add(layer, "activation", "", "cur_amax", bad ? NAN : amax);
  records.add(layer, "activation", "fprop", "underflows%", 0.5 * number);
  const bool overflows = number == 2 && i >= 25;
  records.add(layer, "activation", "fprop", "overflows%", overflows ? 0.25 : 0);
  records.add(layer, "activation", "fprop", "saturated", overflows ? 25 : 0);
  records.add(layer, "activation", "fprop", "mse", 1e-4 * amax * amax);
  records.add(layer, "gradient", "", "nonfinite", 0);
  records.add(layer, "gradient", "", "cur_amax", 0.5);
  records.add(layer, "gradient", "dgrad", "underflows%", 10 + number);
}

// The default number of iterations.
constexpr std::int64_t kUsual = 40;

// Returns false if the run could not be recorded.
bool write(const RunOptions& options, std::int64_t asked) {
  const bool waits = asked < 0;
  const std::int64_t iterations = waits ? kUsual : asked;
  const auto writer = RunWriter::open(options);
  for (std::int64_t i = 0; i < iterations; ++i) {
    {
      Iteration records(*writer, i);
      for (int layer = 0; layer < 4; ++layer) add_layer(records, i, layer);
    }
    writer->scalar(i, "loss", i < 33 ? 4.0 - 0.05 * static_cast<double>(i) : NAN);
  }
  if (iterations > 0) {
    const Record record{iterations, 0, 0, kNoName, writer->intern(Dictionary::statistic, "codes"),
                        kNoName,    12};
    writer->histogram(record, std::array<HistogramBin, 2>{{{3, 5}, {200, 7}}});
    writer->push(std::array<LedgerRow, 1>{
        {{1, 0, 0, writer->intern(Dictionary::word, "kernel"), kNoName, 2.5}}});
    writer->push(std::array<BlockRow, 1>{{{1, 0, 0, 0, 0, 4, 5, 0.125}}});
    writer->event(30, "warning", "layers.2.fc1: activation is not finite", 2);
  }
  if (waits) {
    writer->flush();
    std::puts("recorded");
    std::fflush(stdout);
    ::pause();
  }
  writer->close();
  return writer->error().empty();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  RunOptions options;
  options.log_dir = argv[1];
  options.run_id = argv[2];
  options.on_full = OnFull::block;  // if the machine is busy, no rows must be dropped
  options.config_text = "everything:\n  enabled: True\n";
  options.environment = {{"torch", "2.11.0"}};
  const std::int64_t iterations = argc > 3 ? std::atoll(argv[3]) : kUsual;
  if (argc > 4) options.rank = std::atoi(argv[4]);
  options.world_size = argc > 5 ? std::atoi(argv[5]) : 1;
  for (const int end = options.rank + options.world_size; options.rank < end; ++options.rank) {
    if (!write(options, iterations)) return 1;
  }
  return 0;
}
