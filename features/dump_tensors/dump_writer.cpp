#include "features/dump_tensors/dump_writer.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "core/base/error.h"
#include "hooks/tensor_ops.h"

namespace telens::features {
namespace {

using record::DumpAttribute;
using record::DumpType;

DumpType get_type(const TensorHandle& tensor) {
  switch (tensor.dtype()) {
    case DType::uint8:
      return DumpType::uint8;
    case DType::bfloat16:
      return DumpType::uint16;
    case DType::float16:
      return DumpType::float16;
    case DType::float32:
      return DumpType::float32;
    case DType::float64:
      return DumpType::float64;
    default:
      raise<RecordError>(
          "a tensor of dtype {} cannot be dumped; expected BFloat16, Half, Float or "
          "Double",
          telens::get_name(tensor.dtype()));
  }
}

// Returns the format of a plain tensor's elements.
std::string_view get_format(const TensorHandle& tensor) {
  switch (get_type(tensor)) {
    case DumpType::uint16:
      return "BF16";
    case DumpType::float16:
      return "FP16";
    case DumpType::float32:
      return "FP32";
    default:
      return "FP64";
  }
}

void add_operand_attributes(const ObservedOperand& tensor, bool rowwise,
                            std::vector<DumpAttribute>& attributes) {
  const auto text = [&](const char* name, std::string_view value) {
    attributes.emplace_back(name, std::string(value));
  };
  const auto number = [&](const char* name, std::int64_t value) {
    attributes.emplace_back(name, value);
  };
  text("format", telens::get_name(tensor.format()));
  text("scaling", telens::get_name(tensor.mode()));
  number("transposed", rowwise ? 0 : 1);
  number("block_height", block_height(tensor.mode()));
  number("block_length", block_length(tensor.mode()));
  // Options of the quantizer that do not affect the meaning of the codes.
  const BlockOptions& blocks = tensor.blocks();
  number("two_dimensional", blocks.two_dimensional ? 1 : 0);
  number("scale_rounding", static_cast<std::int64_t>(blocks.scale_rounding));
  number("power_of_2_scales", blocks.power_of_2_scales ? 1 : 0);
  attributes.emplace_back("amax_epsilon", double{blocks.amax_epsilon});
  number("stochastic_rounding", blocks.stochastic_rounding ? 1 : 0);
  if (blocks.four_over_six) {
    number("four_over_six_squared_error", blocks.four_over_six->squared_error ? 1 : 0);
    attributes.emplace_back("four_over_six_largest_scale",
                            double{blocks.four_over_six->largest_scale});
  }
  if (blocks.row_scaled) number("row_scaled", 1);
  if (!rowwise && blocks.hadamard_signs) {
    number("hadamard_signs", *blocks.hadamard_signs);
  }
}

}  // namespace

void PendingDump::set(std::string name, std::string_view value) {
  dump_.attributes.emplace_back(std::move(name), std::string(value));
}
void PendingDump::set(std::string name, std::int64_t value) {
  dump_.attributes.emplace_back(std::move(name), value);
}
void PendingDump::set(std::string name, std::vector<std::int64_t> value) {
  dump_.attributes.emplace_back(std::move(name), std::move(value));
}

void PendingDump::add_values(const std::string& path, const TensorHandle& tensor) {
  for (const auto& [known_path, known] : values_) {
    if (tensor_ops::are_the_same_values(known, tensor)) {
      dump_.links.emplace_back(path, known_path);
      return;
    }
  }
  values_.emplace_back(path, tensor);
  add(path, tensor, get_format(tensor));
}

void PendingDump::add_operand(const std::string& group, std::vector<DumpAttribute> attributes,
                              const ObservedOperand& operand, bool rowwise) {
  if (operand.is_quantized()) add_operand_attributes(operand, rowwise, attributes);
  dump_.groups.emplace_back(group, std::move(attributes));
  if (!operand.is_quantized()) {
    add_values(group + "/values", operand.plain());
    return;
  }
  const QuantizedCodes data = operand.codes(/*columnwise=*/!rowwise);
  add(group + "/codes", data.codes, telens::get_name(operand.format()));
  add(group + "/scale_inv", data.scale_inv, telens::get_name(scheme(operand.mode()).scale_format));
  if (data.tensor_scale.defined()) add(group + "/tensor_scale", data.tensor_scale, "FP32");
}

void PendingDump::add(const std::string& path, const TensorHandle& tensor,
                      std::string_view format) {
  record::DumpDataset dataset{
      .path = path, .type = get_type(tensor), .shape = {}, .data = {}, .attributes = {}};
  for (const std::int64_t size : tensor.sizes()) {
    dataset.shape.push_back(static_cast<std::uint64_t>(size));
  }
  dataset.attributes.emplace_back("format", std::string(format));
  dump_.datasets.push_back(std::move(dataset));
  tensors_.push_back(tensor_ops::detach(tensor));
}

std::vector<TensorHandle> PendingDump::take_tensors() {
  values_.clear();
  return std::exchange(tensors_, {});
}

const record::TensorDump& PendingDump::finished(std::span<const TensorHandle> copies) {
  for (std::size_t i = 0; i < copies.size(); ++i) {
    dump_.datasets[i].data = {static_cast<const std::byte*>(copies[i].const_data_ptr()),
                              copies[i].nbytes()};
  }
  return dump_;
}

void DumpWriter::write(std::vector<Arrived>& dumps) {
  for (Arrived& each : dumps) {
    record::write_tensor_dump(each.work.place.folder, each.work.place.name,
                              each.work.dump.finished(each.tensors));
    each.tensors.clear();
  }
}

void DumpWriter::collect(Waiting waiting) {
  std::ranges::move(arrivals_.take(waiting), std::back_inserter(arrived_));
}

void DumpWriter::finish_all() {
  bytes_ = bytes_of_writing_ = 0;
  if (writing_.valid()) writing_.get();
  collect(Waiting::yes);
  std::vector<Arrived> dumps = std::exchange(arrived_, {});
  write(dumps);
}

bool DumpWriter::add(Place place, PendingDump dump) {
  std::vector<TensorHandle> tensors = dump.take_tensors();
  const std::lock_guard lock(mutex_);
  for (const TensorHandle& each : tensors) bytes_ += each.nbytes();
  const bool is_there = arrivals_.add(std::move(tensors), {std::move(place), std::move(dump)});
  const bool too_many = !is_there && bytes_ > most_bytes_;
  if (is_there || too_many) finish_all();
  return too_many;
}

void DumpWriter::write_arrived() {
  const std::lock_guard lock(mutex_);
  collect(Waiting::no);
  if (writing_.valid()) {
    if (writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
    bytes_ -= std::exchange(bytes_of_writing_, 0);
    writing_.get();
  }
  if (arrived_.empty()) return;
  std::vector<Arrived> dumps = std::exchange(arrived_, {});
  for (const Arrived& each : dumps) {
    for (const TensorHandle& tensor : each.tensors) bytes_of_writing_ += tensor.nbytes();
  }
  writing_ = std::async(std::launch::async, [dumps = std::move(dumps)]() mutable { write(dumps); });
}

void DumpWriter::finish() {
  const std::lock_guard lock(mutex_);
  finish_all();
}

}  // namespace telens::features
