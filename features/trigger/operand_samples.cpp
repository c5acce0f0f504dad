#include "features/trigger/operand_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "core/base/version.h"
#include "core/formats/philox.h"
#include "features/sample_seed.h"
#include "hooks/tensor_ops.h"
#include "record/tensor_dump.h"

namespace telens::features {
namespace {

constexpr std::int64_t kSchemaVersion = 1;

// The random words for a slot of a sample in a micro-batch.
class Draw {
 public:
  Draw(std::uint64_t seed, std::int64_t micro_batch, std::size_t slot)
      : words_(philox4x32(
            {static_cast<std::uint32_t>(slot), 0, static_cast<std::uint32_t>(micro_batch), 0},
            {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)})) {}

  // Returns a place in the slot's share of the elements, each with the same probability. So the
  // places are different, in order, and spread over the whole tensor.
  std::int64_t position(std::size_t slot, std::size_t slots, std::int64_t elements) const {
    const auto count = static_cast<std::int64_t>(slots);
    const auto begin = static_cast<std::int64_t>(slot) * elements / count;
    const auto end = (static_cast<std::int64_t>(slot) + 1) * elements / count;
    const std::uint64_t random = static_cast<std::uint64_t>(words_[1]) << 32 | words_[0];
    const auto share = static_cast<std::uint64_t>(std::max<std::int64_t>(end - begin, 1));
    return begin + static_cast<std::int64_t>(random % share);
  }

  // Returns true if the slot takes this micro-batch, the n-th, instead of an earlier one. In the
  // end, all have the same probability (reservoir sampling).
  bool takes(std::int64_t micro_batch) const {
    return words_[2] % static_cast<std::uint64_t>(micro_batch) == 0;
  }

 private:
  PhiloxCounter words_;
};

std::span<const std::byte> get_bytes(std::span<const std::int64_t> numbers) {
  return std::as_bytes(numbers);
}

// One operand over the iterations, column by column.
struct Columns {
  std::vector<std::int64_t> iteration, row, column;
  std::vector<TensorHandle> values;

  void add(std::int64_t of_iteration, const OperandSample& sample) {
    for (const std::int64_t position : sample.positions) {
      iteration.push_back(of_iteration);
      row.push_back(position / sample.columns);
      column.push_back(position % sample.columns);
    }
    values.push_back(sample.values);
  }
};

}  // namespace

OperandSamples::Iteration& OperandSamples::get_kept(std::int64_t iteration) {
  if (kept_.empty() || kept_.back().iteration != iteration) kept_.push_back({iteration, {}, 0});
  return kept_.back();
}

void OperandSamples::forget_first() {
  bytes_ -= kept_.front().bytes;
  kept_.pop_front();
}

bool OperandSamples::make_room(std::size_t bytes) {
  while (bytes_ + bytes > most_bytes_ && kept_.size() > 1) {
    left_out_ += static_cast<std::int64_t>(kept_.front().samples.size());
    forget_first();
  }
  return bytes_ + bytes <= most_bytes_;
}

void OperandSamples::add(std::string_view layer, TensorName tensor, std::int64_t iteration,
                         const TensorHandle& operand) {
  if (operand.numel() == 0) return;
  const NoGradScope no_grad;
  const std::lock_guard lock(mutex_);
  get_kept(iteration);
  const Key key{std::string(layer), tensor};
  const bool is_known = kept_.back().samples.contains(key);
  const auto elements = static_cast<std::size_t>(std::min(elements_, operand.numel()));
  const std::size_t bytes =
      elements * (sizeof(std::int64_t) + static_cast<std::size_t>(operand.element_size()));
  if (!is_known && !make_room(bytes)) {
    ++left_out_;
    return;
  }
  OperandSample& sample = kept_.back().samples[key];
  if (!is_known) {
    kept_.back().bytes += bytes;
    bytes_ += bytes;
  }
  const bool first = sample.micro_batches++ == 0;
  if (!first && tensor == TensorName::weight) return;
  if (first) {
    sample.columns = operand.size(-1);
    sample.positions.resize(elements);
  }
  const std::uint64_t seed = sample_seed(layer, iteration, static_cast<std::uint64_t>(tensor));
  std::vector<std::int64_t> slots, positions;
  for (std::size_t slot = 0; slot < sample.positions.size(); ++slot) {
    const Draw draw(seed, sample.micro_batches, slot);
    if (!draw.takes(sample.micro_batches)) continue;
    sample.positions[slot] = draw.position(slot, sample.positions.size(), operand.numel());
    slots.push_back(static_cast<std::int64_t>(slot));
    positions.push_back(sample.positions[slot]);
  }
  if (slots.empty()) return;
  const TensorHandle values = tensor_ops::take(operand, positions);
  if (first) {
    sample.values = values;
  } else {
    wait_for(*sample.stream);
    tensor_ops::put(sample.values, slots, values);
  }
  sample.stream = current_stream(operand.device());
}

void OperandSamples::end_iteration(std::int64_t iteration) {
  const std::lock_guard lock(mutex_);
  // The iteration number may jump back (initialize_training_step), so the number of kept iterations
  // is also limited.
  while (!kept_.empty() && (kept_.front().iteration <= iteration - iterations_ ||
                            static_cast<std::int64_t>(kept_.size()) > iterations_)) {
    forget_first();
  }
}

OperandSamples::Kept OperandSamples::take() {
  const std::lock_guard lock(mutex_);
  Kept kept{std::exchange(kept_, {}), nullptr, std::exchange(left_out_, 0)};
  bytes_ = 0;
  // A sample whose creation threw an exception does not have values.
  for (Iteration& each : kept.iterations) {
    std::erase_if(each.samples, [](const auto& sample) { return !sample.second.values.defined(); });
  }
  std::erase_if(kept.iterations, [](const Iteration& each) { return each.samples.empty(); });
  if (kept.iterations.empty()) return kept;
  const DeviceId device = kept.iterations.back().samples.begin()->second.values.device();
  if (device.is_cpu()) return kept;
  for (const Iteration& each : kept.iterations) {
    for (const auto& [key, sample] : each.samples) wait_for(*sample.stream);
  }
  kept.written = std::make_shared<const StreamEvent>(device);
  return kept;
}

void write_operand_samples(const OperandSamples::Kept& kept, const std::string& folder,
                           const std::string& name, int rank) {
  if (kept.written) kept.written->synchronize();
  std::map<OperandSamples::Key, Columns> operands;
  for (const OperandSamples::Iteration& each : kept.iterations) {
    for (const auto& [key, sample] : each.samples) operands[key].add(each.iteration, sample);
  }
  record::TensorDump dump;
  dump.attributes = {{"schema", std::string("telens operand samples")},
                     {"schema_version", kSchemaVersion},
                     {"telens_version", std::string(kVersion)},
                     {"rank", std::int64_t{rank}}};
  std::deque<TensorHandle> values;  // the tensors to which the dump refers
  std::size_t number = 0;
  for (const auto& [key, columns] : operands) {
    const std::string group = fmt::format("{:06d}", number++);
    dump.groups.push_back(
        {group, {{"layer", key.first}, {"tensor", std::string(telens::get_name(key.second))}}});
    const auto add = [&](std::string_view column, record::DumpType type,
                         std::span<const std::byte> data) {
      dump.datasets.push_back({.path = fmt::format("{}/{}", group, column),
                               .type = type,
                               .shape = {columns.iteration.size()},
                               .data = data,
                               .attributes = {}});
    };
    const TensorHandle& all = values.emplace_back(tensor_ops::join_as_doubles(columns.values));
    add("iteration", record::DumpType::int64, get_bytes(columns.iteration));
    add("row", record::DumpType::int64, get_bytes(columns.row));
    add("column", record::DumpType::int64, get_bytes(columns.column));
    add("value", record::DumpType::float64,
        {static_cast<const std::byte*>(all.const_data_ptr()), all.nbytes()});
  }
  record::write_tensor_dump(folder, name, dump);
}

}  // namespace telens::features
