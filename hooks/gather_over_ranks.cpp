#include "hooks/gather_over_ranks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>

#include "hooks/reductions.h"

namespace telens {

std::vector<RankWords> gather_words(const RankWords& words, c10d::ProcessGroup& group) {
  // A group with only NCCL does not accept CPU tensors.
  const std::vector<c10::Device> devices = group.getDeviceTypes();
  const bool takes_cpu = devices.empty() || std::ranges::any_of(devices, [](c10::Device device) {
                           return device.type() == c10::DeviceType::CPU;
                         });
  const c10::Device device = takes_cpu ? c10::Device(c10::kCPU) : devices.front();
  const auto size = static_cast<std::int64_t>(words.size());
  at::Tensor packed = at::empty({size}, at::kLong);
  std::ranges::copy(words, packed.mutable_data_ptr<std::int64_t>());

  std::vector<at::Tensor> inputs{packed.to(device)};
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int rank = 0; rank < group.getSize(); ++rank) {
    outputs[0].push_back(at::zeros({size}, inputs[0].options()));
  }
  group.allgather(outputs, inputs)->wait();
  std::vector<RankWords> result;
  for (const at::Tensor& each : outputs[0]) {
    const at::Tensor host = each.cpu();
    const auto* data = host.const_data_ptr<std::int64_t>();
    result.emplace_back(data, data + size);
  }
  return result;
}

std::vector<std::int64_t> gather_notes(std::int64_t note, c10d::ProcessGroup& group) {
  std::vector<std::int64_t> notes;
  for (const RankWords& each : gather_words({note}, group)) notes.push_back(each.front());
  return notes;
}

std::vector<std::string> gather_texts(std::string_view text, c10d::ProcessGroup& group) {
  const std::vector<std::int64_t> sizes =
      gather_notes(static_cast<std::int64_t>(text.size()), group);
  std::vector<std::string> texts(sizes.size());
  const auto longest = static_cast<std::size_t>(std::ranges::max(sizes));
  if (longest == 0) return texts;
  RankWords packed((longest + 7) / 8);
  std::ranges::copy(text, reinterpret_cast<char*>(packed.data()));
  const std::vector<RankWords> gathered = gather_words(packed, group);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    texts[rank].assign(reinterpret_cast<const char*>(gathered[rank].data()),
                       static_cast<std::size_t>(sizes[rank]));
  }
  return texts;
}

}  // namespace telens
