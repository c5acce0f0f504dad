#include "hooks/engine/captured_reads.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/ops/capture.h"
#include "core/ops/plain_tensors.h"

namespace telens::features {
namespace {

std::string get_name(const CapturedRead& read) {
  return fmt::format("layer '{}', {}: the statistics", read.layer->name(),
                     telens::get_name(read.tensor));
}

bool any(const std::vector<bool>& due) { return std::ranges::find(due, true) != due.end(); }

}  // namespace

CapturedReads::~CapturedReads() {
  if (captured_.empty()) return;
  for (auto& [device, memory] : memory_) {
    try {
      memory.gates.shut();
    } catch (const std::exception&) {
      // The device has gone before the session: no graph runs any more.
    }
    memory.reserve.keep_for_good();
  }
}

void CapturedReads::prepare(std::string_view layer_name, const at::Device& device) {
  const std::lock_guard lock(mutex_);
  const ops::PlainTensors plain;
  memory_.try_emplace(device.str(), device).first->second.add_layer(layer_name);
}

GraphMemory& CapturedReads::memory_for(const CapturedRead& read, const at::Device& device) {
  const auto found = memory_.find(device.str());
  if (found != memory_.end()) return found->second;
  raise<UsageError>(
      "{} cannot be captured: no layer that is watched ran on {} yet; run a step before the "
      "capture, as a graph's warm-up",
      get_name(read), device.str());
}

CapturedReads::Captured& CapturedReads::captured_for(CapturedRead read, const at::Device& device) {
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
        "{} cannot be captured: there is no memory left of what was laid by for graphs; run a step "
        "and call debug.step() before the capture, and ask for at most {} casts of one tensor",
        get_name(read), AccumulatorReserve::kMostCasts);
  }
  const std::int64_t gate = memory.gates.add();
  return captured_.emplace_back(std::move(read), std::move(*sums), &memory, gate);
}

void CapturedReads::capture(CapturedRead read, const at::Tensor& x, const Prepare& prepare) {
  if (read.set.scale_cast() || !read.set.defined().empty()) {
    raise<UsageError>(
        "{} cannot be captured: those of scales over time and those of plugins need the host; "
        "leave them out, or this layer",
        get_name(read));
  }
  const std::lock_guard lock(mutex_);
  Captured& captured = captured_for(std::move(read), x.device());
  const TensorName tensor = captured.read.tensor;
  if (tensor == TensorName::weight) captured.memory->reserve.reset(captured.sums);
  const ops::GateScope scope(captured.memory->gates.word(captured.gate));
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
    const ops::PlainTensors plain;
    memory.refill();
  }
}

}  // namespace telens::features
