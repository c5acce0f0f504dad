// `exponent_histogram` and `code_histogram` on the CPU.
//
// Both count with scalar instructions, one or two cycles per element. They are limited by the rate
// of counter increments, not by memory. An increment of a recently incremented counter waits for
// the earlier store (about 5 cycles), so neighboring elements use different sub-tables. All sums
// are integer sums, so their order does not matter.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <memory>

#include "core/formats/dispatch.h"
#include "core/kernels/cpu/statistics/statistics_words.h"
#include "core/ops/histogram.h"
#include "core/ops/histogram_layout.h"

namespace telens {
namespace {

// Elements per part: they stay in the second-level cache, fit 32-bit counters and take about as
// long as waking a thread.
constexpr std::int64_t kHistogramPart = 1 << 17;

// Adds a thread's count to a tensor that several threads share.
void add_to(std::int64_t& count, std::int64_t more) {
  if (more != 0) std::atomic_ref(count).fetch_add(more, std::memory_order_relaxed);
}

// Calls use(codes, size) for parts of a dense tensor, on several threads, each with its own Use.
template <typename Format, typename MakeUse>
void for_each_part(const at::Tensor& x, const MakeUse& make_use) {
  // A histogram does not depend on element order: a dense layout is read without a copy.
  const at::Tensor dense = x.is_non_overlapping_and_dense() ? x : x.contiguous();
  const auto* codes = static_cast<const typename Format::Bits*>(dense.const_data_ptr());
  at::parallel_for(0, dense.numel(), kHistogramPart, [&](std::int64_t first, std::int64_t last) {
    auto use = make_use();
    for (std::int64_t i = first; i < last; i += kHistogramPart) {
      use(codes + i, static_cast<std::size_t>(std::min(kHistogramPart, last - i)));
    }
  });
}

// ---- exponents

// Counts the codes equal to `code`; `size` is at most kHistogramPart. Works in blocks whose count
// fits the bits of a code, so that it vectorizes with lanes of that width.
template <typename Bits>
std::int64_t count_equal(const Bits* codes, std::size_t size, Bits code) {
  constexpr std::size_t kBlock = 8192;
  std::int64_t total = 0;
  for (std::size_t begin = 0; begin < size; begin += kBlock) {
    Bits count = 0;
    for (std::size_t i = begin; i < std::min(size, begin + kBlock); ++i) count += codes[i] == code;
    total += count;
  }
  return total;
}

template <typename Format>
class ExponentCounter {
 public:
  using Bits = typename Format::Bits;

  explicit ExponentCounter(std::int64_t* counts) : counts_(counts) {}

  void operator()(const Bits* codes, std::size_t size) {
    for (auto& table : tables_) table.fill(0);
    std::size_t i = 0;
    for (; i + kTables <= size; i += kTables) {
      for (std::size_t k = 0; k < kTables; ++k) ++tables_[k][codes[i + k] >> Format::kMantissaBits];
    }
    for (; i < size; ++i) ++tables_[0][codes[i] >> Format::kMantissaBits];
    for (const bool negative : {false, true}) add_sign(codes, size, negative);
  }

 private:
  static constexpr std::size_t kTables = 8;
  static constexpr int kFields = 1 << Format::kExponentBits;  // per sign

  // The number of elements with this sign and exponent field.
  std::int64_t elements(bool negative, int field) const {
    std::int64_t sum = 0;
    for (const auto& table : tables_) sum += table[(negative ? kFields : 0) + field];
    return sum;
  }

  // The lowest and the highest exponent field hold two kinds of values each. One of the two has a
  // single code.
  void add_sign(const Bits* codes, std::size_t size, bool negative) {
    const Bits sign = negative ? Format::kSignMask : Bits{0};
    const auto add_field = [&](int field, Bits single_code, std::int64_t single,
                               std::int64_t rest) {
      const std::int64_t all = elements(negative, field);
      if (all == 0) return;
      const std::int64_t those = count_equal(codes, size, static_cast<Bits>(sign | single_code));
      add_to(counts_[single], those);
      add_to(counts_[rest], all - those);
    };
    add_field(0, 0, kZeroBin, signed_bin(negative, kSubnormalDistance));
    for (int field = 1; field < kFields - 1; ++field) {
      add_to(counts_[bin_of_field<Format>(negative, field)], elements(negative, field));
    }
    add_field(kFields - 1, Format::kTopExponentCode,
              negative ? kNegativeInfinityBin : kPositiveInfinityBin, kNanBin);
  }

  std::int64_t* counts_;
  std::array<std::array<std::uint32_t, 2 * kFields>, kTables> tables_;
};

void exponent_histogram_cpu(const at::Tensor& x, at::Tensor& counts) {
  ops::check_exponent_histogram(x, counts);
  auto* bins = counts.mutable_data_ptr<std::int64_t>();
  dispatch_high_precision_format(
      kernels::get_format(x.scalar_type()), "exponent_histogram", [&]<typename Format>() {
        for_each_part<Format>(x, [&] { return ExponentCounter<Format>(bins); });
      });
}

// ---- codes

// Counters of 8 bits: two sub-tables take 128 KiB. Random codes hit the second-level cache, and the
// few thousand codes of a typical tensor hit the first. A counter that wraps around has counted
// 256.
class CodeCounter {
 public:
  using Bits = std::uint16_t;

  explicit CodeCounter(std::int64_t* counts)
      : counts_(counts), tables_(std::make_unique<Tables>()) {}
  CodeCounter(CodeCounter&&) = default;
  ~CodeCounter() {
    if (!tables_) return;
    for (std::size_t code = 0; code < kCodeBins; ++code) {
      add_to(counts_[code], (*tables_)[0][code] + (*tables_)[1][code]);
    }
  }

  void operator()(const Bits* codes, std::size_t size) {
    auto& even = (*tables_)[0];
    auto& odd = (*tables_)[1];
    std::size_t i = 0;
    for (; i + 2 <= size; i += 2) {
      count(even, codes[i]);
      count(odd, codes[i + 1]);
    }
    if (i < size) count(even, codes[i]);
  }

 private:
  using Table = std::array<std::uint8_t, kCodeBins>;
  using Tables = std::array<Table, 2>;

  void count(Table& table, Bits code) {
    if (++table[code] == 0) [[unlikely]] {
      add_to(counts_[code], 256);
    }
  }

  std::int64_t* counts_;
  std::unique_ptr<Tables> tables_;
};

void code_histogram_cpu(const at::Tensor& x, at::Tensor& counts) {
  ops::check_code_histogram(x, counts);
  auto* bins = counts.mutable_data_ptr<std::int64_t>();
  for_each_part<BF16>(x, [&] { return CodeCounter(bins); });  // FP16 codes have the same width
}

}  // namespace
}  // namespace telens

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("exponent_histogram", telens::exponent_histogram_cpu);
  library.impl("code_histogram", telens::code_histogram_cpu);
}
