#include "hooks/engine/graph_memory.h"

#include <ATen/ops/ones.h>

#include <algorithm>
#include <mutex>

#include "core/base/error.h"
#include "core/ops/statistics.h"
#include "core/ops/statistics_block_casts.h"
#include "core/ops/statistics_layout.h"
#include "hooks/host_copy.h"

namespace telens::features {
namespace {

// The most that one read has: block casts for its statistics, and sizes of blocks.
constexpr std::int64_t kBlockCastsOfRead = 8;
constexpr std::int64_t kRangesOfRead = 4;
// Rows that are allocated at once.
constexpr std::int64_t kFewestRows = 512;

// Keeps accumulators that graphs of an ended session still add to, and the gates that stop them.
void keep(at::Tensor tensor) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<at::Tensor>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(tensor));
}

}  // namespace

// ---- gates

Gates::Gates(const at::Device& device)
    : words_(at::ones({kMost}, at::TensorOptions(at::kLong).device(device))) {}

std::int64_t Gates::add() {
  if (static_cast<std::int64_t>(wanted_.size()) == kMost) {
    raise<UsageError>("more than {} reads of tensors in graphs; capture fewer, or watch fewer",
                      kMost);
  }
  wanted_.push_back(1);
  return static_cast<std::int64_t>(wanted_.size()) - 1;
}

const std::int64_t* Gates::word(std::int64_t gate) const {
  return words_.const_data_ptr<std::int64_t>() + gate;
}

void Gates::set(std::int64_t gate, bool open) {
  std::int64_t& word = wanted_[static_cast<std::size_t>(gate)];
  changed_ |= word != static_cast<std::int64_t>(open);
  word = open ? 1 : 0;
}

void Gates::update() {
  if (!std::exchange(changed_, false)) return;
  words_.narrow(0, 0, static_cast<std::int64_t>(wanted_.size()))
      .copy_(copy_to_device(wanted_, words_.device()));
}

void Gates::shut() {
  if (wanted_.empty()) return;
  keep(words_);
  words_.zero_();
}

// ---- accumulators

AccumulatorReserve::Rows::Rows(at::Tensor neutral, std::int64_t a_layer)
    : neutral_(std::move(neutral)), a_layer_(a_layer) {}

void AccumulatorReserve::Rows::refill(std::int64_t layers) {
  const std::int64_t missing = layers * a_layer_ - static_cast<std::int64_t>(free_.size());
  if (missing <= 0) return;
  const std::int64_t rows = std::max(missing, kFewestRows);
  const at::Tensor& block = blocks_.emplace_back(neutral_.repeat({rows, 1}));
  for (at::Tensor& row : block.unbind()) free_.push_back(std::move(row));
}

at::Tensor AccumulatorReserve::Rows::take(std::int64_t words) {
  const at::Tensor row = std::move(free_.back());
  free_.pop_back();
  return row.narrow(0, 0, words);
}

void AccumulatorReserve::Rows::reset(at::Tensor& row) const {
  row.copy_(neutral_.narrow(0, 0, row.numel()));
}

void AccumulatorReserve::Rows::keep_for_good() {
  for (at::Tensor& block : blocks_) keep(std::move(block));
  keep(neutral_);
}

AccumulatorReserve::AccumulatorReserve(const at::Device& device)
    : sums_(ops::empty_statistics(kMostCasts, device), kReadsOfLayer),
      block_casts_(ops::empty_block_casts(device), kReadsOfLayer * kBlockCastsOfRead),
      ranges_(ops::empty_block_ranges(device), kReadsOfLayer * kRangesOfRead) {}

void AccumulatorReserve::refill(std::int64_t layers) {
  for (Rows* rows : {&sums_, &block_casts_, &ranges_}) rows->refill(layers);
}

std::optional<Accumulators> AccumulatorReserve::take(const RequestSet& set) {
  const auto casts = static_cast<std::int64_t>(set.casts().size());
  if (casts > kMostCasts || !sums_.has(1) || !block_casts_.has(set.block_casts().size()) ||
      !ranges_.has(set.blocks().size())) {
    return std::nullopt;
  }
  Accumulators taken{sums_.take(statistics_words(casts))};
  for (std::size_t i = 0; i < set.block_casts().size(); ++i) {
    taken.block_casts.push_back(block_casts_.take(kCastSumsWords));
  }
  for (std::size_t i = 0; i < set.blocks().size(); ++i) {
    taken.ranges.push_back(ranges_.take(kBlockRangesWords));
  }
  return taken;
}

void AccumulatorReserve::reset(Accumulators& accumulators) const {
  sums_.reset(accumulators.sums);
  for (at::Tensor& each : accumulators.block_casts) block_casts_.reset(each);
  for (at::Tensor& each : accumulators.ranges) ranges_.reset(each);
}

void AccumulatorReserve::keep_for_good() {
  for (Rows* rows : {&sums_, &block_casts_, &ranges_}) rows->keep_for_good();
}

// ---- both

void GraphMemory::add_layer(std::string_view name) {
  if (layers_.contains(name)) return;
  layers_.emplace(name);
  refill();
}

}  // namespace telens::features
