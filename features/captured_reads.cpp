#include "features/captured_reads.h"

#include <ATen/ops/ones.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/ops/capture.h"

namespace telens::features {
namespace {

std::string name_of(const CapturedRead& read) {
  return fmt::format("layer '{}', {}: the statistics", read.layer_name,
                     telens::name_of(read.tensor));
}

bool any(const std::vector<bool>& due) { return std::ranges::find(due, true) != due.end(); }

// What graphs of an ended session still add to, and the gates that keep them from it.
void keep_for_good(at::Tensor tensor) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<at::Tensor>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(tensor));
}

}  // namespace

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
  keep_for_good(words_);
  words_.zero_();
}

CapturedReads::~CapturedReads() {
  for (auto& [device, gates] : gates_) {
    try {
      gates.shut();
    } catch (const std::exception&) {
      // The device has gone before the session: no graph runs any more.
    }
  }
  for (Captured& each : captured_) {
    keep_for_good(std::move(each.sums.sums));
    for (auto* tensors : {&each.sums.block_casts, &each.sums.ranges}) {
      for (at::Tensor& tensor : *tensors) keep_for_good(std::move(tensor));
    }
  }
}

void CapturedReads::prepare(const at::Device& device) {
  const std::lock_guard lock(mutex_);
  gates_.try_emplace(device.str(), device);
}

Gates& CapturedReads::gates_of(const CapturedRead& read, const at::Device& device) {
  const auto found = gates_.find(device.str());
  if (found != gates_.end()) return found->second;
  raise<UsageError>(
      "{} cannot be captured: nothing was read on {} yet; run a step with the same features on "
      "before the capture, as a graph's warm-up",
      name_of(read), device.str());
}

CapturedReads::Captured& CapturedReads::captured_for(CapturedRead read, const at::Device& device) {
  const auto known = std::ranges::find_if(captured_, [&](const Captured& each) {
    return each.read.layer_name == read.layer_name && each.read.tensor == read.tensor &&
           each.read.set == read.set && each.sums.sums.device() == device;
  });
  if (known != captured_.end()) {
    known->read = std::move(read);
    return *known;
  }
  Gates& gates = gates_of(read, device);
  std::optional<Accumulators> sums = spare_.take_spare(read.set, device);
  if (!sums) {
    raise<UsageError>(
        "{} cannot be captured: what they add to has to be there before the graph; run a step "
        "with the same features on and call debug.step() before the capture",
        name_of(read));
  }
  const std::int64_t gate = gates.add();
  return captured_.emplace_back(std::move(read), std::move(*sums), &gates, gate);
}

void CapturedReads::capture(CapturedRead read, const at::Tensor& x, const Prepare& prepare) {
  if (read.set.scale_cast() || !read.set.defined().empty()) {
    raise<UsageError>(
        "{} cannot be captured: those of scales over time and those of plugins need the host; "
        "leave them out, or this layer",
        name_of(read));
  }
  const std::lock_guard lock(mutex_);
  Captured& captured = captured_for(std::move(read), x.device());
  const ops::GateScope scope(captured.gates->word(captured.gate));
  const TensorName tensor = captured.read.tensor;
  if (tensor == TensorName::weight) captured.sums.reset();
  const TensorObservation::Read sums = prepare();
  captured.sums.add(x, captured.read.set, sums.casts, sums.copies, has_both_orientations(tensor));
}

void CapturedReads::end_iteration(std::int64_t iteration, const Observation& observation) {
  const std::lock_guard lock(mutex_);
  for (Captured& each : captured_) {
    const CapturedRead& read = each.read;
    const std::vector<bool> due = read.due(iteration);
    if (any(due)) {
      Accumulators sums = spare_.take(read.set, each.sums.sums.device());
      sums.copy_from(each.sums);
      TensorObservation& made = observation(read, iteration);
      made.add(read.set, std::move(sums));
      for (std::size_t i = 0; i < due.size(); ++i) {
        if (due[i]) made.address(read.addresses[i]);
      }
    }
    if (each.gates->is_open(each.gate)) each.sums.reset();
  }
}

void CapturedReads::begin_iteration(std::int64_t iteration) {
  const std::lock_guard lock(mutex_);
  for (Captured& each : captured_) {
    each.gates->set(each.gate, any(each.read.due(iteration)));
  }
  for (auto& [device, gates] : gates_) gates.update();
}

}  // namespace telens::features
