// Writes the histograms that the tests of `telens whatif` read: write_histograms LOG_DIR RANK
//
// Rank 0 has code histograms of the BF16 activation of layers.0.fc1 in iterations 0 and 1 and of
// its output in 0 and 5, and an exponent histogram of its FP32 gradient. Rank 1 has only the
// activation in iteration 0.
#include <cstdlib>
#include <string>
#include <vector>

#include "core/formats/convert.h"
#include "core/ops/histogram_layout.h"
#include "hooks/statistics/histogram.h"
#include "record/run_writer.h"

namespace {

using namespace telens;
using namespace telens::record;

struct Elements {
  float value;
  std::uint64_t count;
};

HistogramBin code_bin(const Elements& of) {
  return {encode<BF16>(of.value, Saturation::saturating), of.count};
}

HistogramBin exponent_bin(const Elements& of) {
  const auto code = encode<FP32>(of.value, Saturation::saturating);
  return {static_cast<std::int32_t>(get_exponent_bin<FP32>(code)), of.count};
}

void add(RunWriter& writer, std::int64_t iteration, const std::string& tensor,
         const HistogramName& name, const std::vector<Elements>& all) {
  std::vector<HistogramBin> bins;
  double elements = 0;
  for (const Elements& each : all) {
    bins.push_back(name.bins == HistogramBins::codes ? code_bin(each) : exponent_bin(each));
    elements += static_cast<double>(each.count);
  }
  writer.histogram(
      {iteration, writer.intern(Dictionary::layer, "layers.0.fc1"),
       writer.intern(Dictionary::tensor, tensor), kNoName,
       writer.intern(Dictionary::statistic, format_histogram_name(name)), kNoName, elements},
      bins);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  RunOptions options;
  options.log_dir = argv[1];
  options.run_id = "run";
  options.rank = std::atoi(argv[2]);
  const auto writer = RunWriter::open(options);
  const HistogramName codes{HistogramBins::codes, FormatId::bf16};
  const HistogramName exponents{HistogramBins::exponent, FormatId::fp32};
  if (options.rank == 0) {
    add(*writer, 0, "activation", codes, {{0, 10}, {0x1p-17F, 5}, {1, 9}, {4, 1}});
    add(*writer, 1, "activation", codes, {{1, 24}, {16, 1}});
    for (const int iteration : {0, 5}) add(*writer, iteration, "output", codes, {{1, 4}});
    add(*writer, 1, "gradient", exponents, {{0x1p-40F, 2}, {0x1p-33F, 3}, {-1, 15}});
  } else {
    add(*writer, 0, "activation", codes, {{8, 25}});
  }
  writer->close();
  return writer->error().empty() ? 0 : 1;
}
