#include "hooks/engine/graph_reads.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/ops/statistics_layout.h"
#include "hooks/streams.h"

namespace telens::features {
namespace {

// Maximum numbers of block casts and of block sizes per read.
constexpr std::int64_t kBlockCastsOfRead = 8;
constexpr std::int64_t kRangesOfRead = 4;
// Minimum number of rows per allocation.
constexpr std::int64_t kFewestRows = 512;

// Keeps a tensor until the process ends: graphs of an ended session still read gates and write
// accumulators.
void keep(TensorHandle tensor) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<TensorHandle>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(tensor));
}

std::string get_name(const CapturedRead& read) {
  return fmt::format("layer '{}', {}: the statistics", read.layer->name(),
                     telens::get_name(read.tensor));
}

bool any(const std::vector<bool>& due) { return std::ranges::find(due, true) != due.end(); }

}  // namespace

// ---- gates

Gates::Gates(DeviceId device) : words_(tensor_ops::filled(kMost, 1, device)) {}

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
  tensor_ops::copy(tensor_ops::front(words_, static_cast<std::int64_t>(wanted_.size())),
                   copy_to_device(wanted_, words_.device()));
}

void Gates::shut() {
  if (wanted_.empty()) return;
  keep(words_);
  tensor_ops::fill(words_, 0);
}

// ---- accumulators

AccumulatorReserve::Rows::Rows(TensorHandle neutral, std::int64_t rows_of_layer)
    : neutral_(std::move(neutral)), rows_of_layer_(rows_of_layer) {}

void AccumulatorReserve::Rows::refill(std::int64_t layers) {
  const std::int64_t missing = layers * rows_of_layer_ - static_cast<std::int64_t>(free_.size());
  if (missing <= 0) return;
  std::vector<TensorHandle> rows = tensor_ops::repeat(neutral_, std::max(missing, kFewestRows));
  blocks_.push_back(rows.front());
  for (TensorHandle& row : rows) free_.push_back(std::move(row));
}

TensorHandle AccumulatorReserve::Rows::take(std::int64_t words) {
  const TensorHandle row = std::move(free_.back());
  free_.pop_back();
  return tensor_ops::front(row, words);
}

void AccumulatorReserve::Rows::reset(const TensorHandle& row) const {
  tensor_ops::copy(row, tensor_ops::front(neutral_, row.numel()));
}

void AccumulatorReserve::Rows::keep_for_good() {
  for (TensorHandle& block : blocks_) keep(std::move(block));
  keep(neutral_);
}

AccumulatorReserve::AccumulatorReserve(DeviceId device)
    : sums_(tensor_ops::empty_statistics(kMostCasts, device), kReadsOfLayer),
      block_casts_(tensor_ops::empty_block_casts(device), kReadsOfLayer * kBlockCastsOfRead),
      ranges_(tensor_ops::empty_block_ranges(device), kReadsOfLayer * kRangesOfRead) {}

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

void AccumulatorReserve::reset(const Accumulators& accumulators) const {
  sums_.reset(accumulators.sums);
  for (const TensorHandle& each : accumulators.block_casts) block_casts_.reset(each);
  for (const TensorHandle& each : accumulators.ranges) ranges_.reset(each);
}

void AccumulatorReserve::keep_for_good() {
  for (Rows* rows : {&sums_, &block_casts_, &ranges_}) rows->keep_for_good();
}

void GraphMemory::add_layer(std::string_view name) {
  if (layers_.contains(name)) return;
  layers_.emplace(name);
  refill();
}

// ---- reads

CapturedReads::~CapturedReads() {
  if (captured_.empty()) return;
  for (auto& [device, memory] : memory_) {
    try {
      memory.gates.shut();
    } catch (const std::exception&) {
      // The device was shut down before the session, so no graph runs any more.
    }
    memory.reserve.keep_for_good();
  }
}

void CapturedReads::prepare(std::string_view layer_name, DeviceId device) {
  const std::lock_guard lock(mutex_);
  const PlainTensorScope plain;
  memory_.try_emplace(device.str(), device).first->second.add_layer(layer_name);
}

GraphMemory& CapturedReads::memory_for(const CapturedRead& read, DeviceId device) {
  const auto found = memory_.find(device.str());
  if (found != memory_.end()) return found->second;
  raise<UsageError>(
      "{} cannot be captured: no layer that is watched ran on {} yet; run a step before the "
      "capture, as a graph's warm-up",
      get_name(read), device.str());
}

CapturedReads::Captured& CapturedReads::captured_for(CapturedRead read, DeviceId device) {
  const auto known = std::ranges::find_if(captured_, [&](const Captured& each) {
    return each.read.layer == read.layer && each.read.tensor == read.tensor &&
           each.read.evaluation == read.evaluation && each.read.set == read.set &&
           each.sums.sums.device() == device;
  });
  if (known != captured_.end()) {
    known->read = std::move(read);
    return *known;
  }
  GraphMemory& memory = memory_for(read, device);
  std::optional<Accumulators> sums = memory.reserve.take(read.set);
  if (!sums) {
    raise<UsageError>(
        "{} cannot be captured: the accumulator memory reserved for CUDA graphs is used up; run a "
        "step and call debug.step() before the capture, and request at most {} casts of one tensor",
        get_name(read), AccumulatorReserve::kMostCasts);
  }
  const std::int64_t gate = memory.gates.add();
  return captured_.emplace_back(std::move(read), std::move(*sums), &memory, gate);
}

void CapturedReads::capture(CapturedRead read, const TensorHandle& x, const Prepare& prepare) {
  if (read.set.scale_cast() || !read.set.defined().empty()) {
    raise<UsageError>(
        "{} cannot be captured: statistics of scales over time and statistics of plugins need the "
        "host; remove them from the section, or exclude this layer",
        get_name(read));
  }
  const std::lock_guard lock(mutex_);
  Captured& captured = captured_for(std::move(read), x.device());
  const TensorName tensor = captured.read.tensor;
  if (tensor == TensorName::weight) captured.memory->reserve.reset(captured.sums);
  const GateScope scope(captured.memory->gates.word(captured.gate));
  const TensorObservation::Read sums = prepare();
  captured.sums.add(x, captured.read.set, sums.casts, sums.copies, has_both_orientations(tensor));
}

void CapturedReads::end_iteration(std::int64_t iteration, const Observation& observation) {
  const std::lock_guard lock(mutex_);
  for (Captured& each : captured_) {
    const CapturedRead& read = each.read;
    const std::vector<bool> due = read.due(iteration);
    if (any(due)) {
      TensorObservation& made = observation(read, iteration);
      made.add(read.set, each.sums.clone());
      for (std::size_t i = 0; i < due.size(); ++i) {
        if (due[i]) made.address(read.addresses[i]);
      }
    }
    if (each.memory->gates.is_open(each.gate)) each.memory->reserve.reset(each.sums);
  }
}

void CapturedReads::begin_iteration(std::int64_t iteration) {
  const std::lock_guard lock(mutex_);
  for (Captured& each : captured_) {
    each.memory->gates.set(each.gate, any(each.read.due(iteration)));
  }
  for (auto& [device, memory] : memory_) {
    memory.gates.update();
    const PlainTensorScope plain;
    memory.refill();
  }
}

}  // namespace telens::features
