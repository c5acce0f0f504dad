#include "checkpoint.h"

#include <ATen/core/Dict.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <cstdio>
#include <fstream>
#include <iterator>

#include "core/modules/module/module.h"

namespace gpt {
namespace {

constexpr const char* kStepsDone = "steps_done";
const std::string kModelPrefix = "model.";
const std::string kOptimizerPrefix = "adamw.";

using TensorDict = c10::Dict<std::string, at::Tensor>;

TensorDict read_tensors(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) telens::raise<telens::UsageError>("cannot read the checkpoint {}", file);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), {}};
  try {
    return c10::impl::toTypedDict<std::string, at::Tensor>(
        torch::jit::pickle_load(bytes).toGenericDict());
  } catch (const c10::Error& error) {
    telens::raise<telens::UsageError>("{} is not a checkpoint of this program: {}", file,
                                      error.msg());
  }
}

// Returns the tensors whose names begin with the prefix, keyed by the rest of the name.
telens::StateDict with_prefix(const TensorDict& tensors, const std::string& prefix) {
  telens::StateDict state;
  for (const auto& entry : tensors) {
    if (entry.key().starts_with(prefix)) {
      state[entry.key().substr(prefix.size())] = entry.value();
    }
  }
  return state;
}

}  // namespace

void save_checkpoint(const std::string& file, const torch::nn::Module& model, const AdamW& adamw,
                     std::int64_t steps_done) {
  TensorDict content;
  for (const auto& [name, tensor] : telens::state_dict(model)) {
    content.insert(kModelPrefix + name, tensor.to(at::kCPU));
  }
  for (const auto& [name, tensor] : adamw.state()) {
    content.insert(kOptimizerPrefix + name, tensor.to(at::kCPU));
  }
  content.insert(kStepsDone, at::tensor(steps_done, at::kLong));

  const std::vector<char> bytes = torch::jit::pickle_save(content);
  const std::string unfinished = file + ".unfinished";
  std::ofstream stream(unfinished, std::ios::binary);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  stream.close();
  if (!stream || std::rename(unfinished.c_str(), file.c_str()) != 0) {
    telens::raise<telens::UsageError>("cannot write the checkpoint {}", file);
  }
}

std::int64_t load_checkpoint(const std::string& file, torch::nn::Module& model, AdamW& adamw) {
  const TensorDict tensors = read_tensors(file);
  telens::load_state_dict(model, with_prefix(tensors, kModelPrefix));
  const telens::StateDict optimizer = with_prefix(tensors, kOptimizerPrefix);
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : adamw.state()) tensor.copy_(optimizer.at(name));
  return tensors.at(kStepsDone).item<std::int64_t>();
}

}  // namespace gpt
