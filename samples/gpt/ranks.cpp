#include "ranks.h"

#include <ATen/core/grad_mode.h>

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "core/modules/attention/context_parallel.h"
#include "core/modules/module/module.h"
#include "core/modules/transformer/transformer_layer.h"
#include "process_groups.h"

namespace gpt {
namespace {

std::int64_t number_from_environment(const char* name, std::int64_t otherwise) {
  const char* value = std::getenv(name);
  if (value == nullptr) return otherwise;
  const std::string_view text(value);
  std::int64_t number = 0;
  const auto read = std::from_chars(text.begin(), text.end(), number);
  if (read.ec != std::errc() || read.ptr != text.end()) {
    telens::raise<telens::UsageError>(
        "the environment variable {} is '{}'; expected a number, as torchrun sets it", name, text);
  }
  return number;
}

struct PlacedParameter {
  at::Tensor value;
  telens::ParameterPlacement placement;
};

// Returns parameters in module order, which is the same in a whole and in a divided model.
std::vector<PlacedParameter> list_parameters(const torch::nn::Module& model) {
  std::vector<PlacedParameter> parameters;
  for (const auto& module : model.modules()) {
    const auto* layer = dynamic_cast<const telens::Module*>(module.get());
    for (const auto& item : module->named_parameters(/*recurse=*/false)) {
      parameters.push_back({.value = item.value(),
                            .placement = layer == nullptr ? telens::ParameterPlacement()
                                                          : layer->placement(item.key())});
    }
  }
  return parameters;
}

// first, first + step, ...: `count` ranks
std::vector<std::uint64_t> every(std::int64_t step, std::int64_t first, std::int64_t count) {
  std::vector<std::uint64_t> ranks;
  for (std::int64_t i = 0; i < count; ++i) {
    ranks.push_back(static_cast<std::uint64_t>(first + i * step));
  }
  return ranks;
}

void check_divides(const char* divided, std::int64_t size, std::int64_t parts, const char* why) {
  if (size % parts == 0) return;
  telens::raise<telens::UsageError>("{} is {}; expected a multiple of {}: {}", divided, size, parts,
                                    why);
}

}  // namespace

Place place_in_world() {
  Place place;
  place.rank = number_from_environment("RANK", 0);
  place.ranks = number_from_environment("WORLD_SIZE", 1);
  place.local_rank = number_from_environment("LOCAL_RANK", place.rank);
  if (place.rank < 0 || place.rank >= place.ranks) {
    telens::raise<telens::UsageError>("RANK is {} and WORLD_SIZE {}; expected RANK from 0 to {}",
                                      place.rank, place.ranks, place.ranks - 1);
  }
  return place;
}

void check(const RankOptions& options, const Place& place, const BatchShape& shape) {
  const std::int64_t wanted = options.tp * options.cp * options.dp;
  if (wanted != place.ranks) {
    telens::raise<telens::UsageError>(
        "--tp {} --cp {} --dp {}: {} is their product, and the number of ranks is {}; start with "
        "torchrun --no-python --nproc-per-node {}, or give numbers whose product is {}",
        options.tp, options.cp, options.dp, wanted, place.ranks, wanted, place.ranks);
  }
  check_divides("--batch", shape.batch, options.dp, "--dp divides it");
  if (options.cp > 1) {
    check_divides("--sequence", shape.sequence, 2 * options.cp, "a rank of --cp has two parts");
  }
  if (options.sequence_parallel) {
    check_divides("--sequence", shape.sequence, options.cp * options.tp, "--sp divides it by --tp");
  }
}

Ranks::Ranks(const RankOptions& options, const Place& place, const at::Device& device)
    : options_(options), place_(place) {
  options_.sequence_parallel = options.sequence_parallel && options.tp > 1;
  if (place.ranks > 1) make_groups(device);
}

void Ranks::make_groups(const at::Device& device) {
  world_ = join_world(static_cast<int>(place_.rank), static_cast<int>(place_.ranks), device);
  const std::int64_t rank = place_.rank;
  const std::int64_t of_layer = rank % options_.tp;         // rank in its tensor-parallel group
  const std::int64_t sequence = options_.tp * options_.cp;  // ranks of one sequence
  const auto make = [&](std::vector<std::uint64_t> ranks,
                        const char* description) -> telens::ProcessGroupPtr {
    if (ranks.size() == 1) return nullptr;
    return make_group(world_,
                      {.ranks = std::move(ranks), .description = description, .device = device});
  };
  tensor_parallel_ = make(every(1, rank - of_layer, options_.tp), "tensor_parallel");
  data_parallel_ = make(every(options_.tp, of_layer, place_.ranks / options_.tp), "data_parallel");
  context_parallel_ =
      make(every(options_.tp, rank - rank % sequence + of_layer, options_.cp), "context_parallel");
}

void Ranks::divide(telens::TransformerLayerOptions& options) const {
  if (options_.tp == 1) return;
  options.set_parallel_mode = true;
  options.parameters.tp_group = tensor_parallel_;
  options.parameters.sequence_parallel = options_.sequence_parallel;
}

void Ranks::share_sequences(telens::TransformerLayer& layer) const {
  if (options_.cp == 1) return;
  layer.set_context_parallel(telens::context_parallel({context_parallel_}, options_.cp_comm_type));
}

void Ranks::copy_own_part(torch::nn::Module& model, const torch::nn::Module& whole) const {
  const at::NoGradGuard no_grad;
  const std::vector<PlacedParameter> from = list_parameters(whole);
  std::vector<PlacedParameter> to = list_parameters(model);
  for (std::size_t i = 0; i < to.size(); ++i) {
    const auto dim = to[i].placement.partition_dim;
    const at::Tensor& value = from.at(i).value;
    to[i].value.copy_(dim ? value.chunk(options_.tp, *dim)[place_.rank % options_.tp] : value);
  }
}

Batch Ranks::own_part(const Batch& batch) const {
  return {own_bytes(batch.inputs), own_bytes(batch.targets)};
}

// bytes: [seq, batch]. Selects this rank's samples, then its chunks of their sequences
// (context_parallel.h), then its rows of the chunks.
at::Tensor Ranks::own_bytes(const at::Tensor& bytes) const {
  const std::int64_t sequence = options_.tp * options_.cp;
  at::Tensor own = bytes.chunk(options_.dp, 1)[place_.rank / sequence];
  if (options_.cp > 1) {
    const telens::ContextRank at{.rank = place_.rank % sequence / options_.tp, .size = options_.cp};
    own = telens::own_chunks(own, 0, at);
  }
  return options_.sequence_parallel ? own.chunk(options_.tp)[place_.rank % options_.tp] : own;
}

double Ranks::share_of_loss() const {
  const std::int64_t of_layer = options_.sequence_parallel ? options_.tp : 1;
  return 1 / static_cast<double>(options_.dp * options_.cp * of_layer);
}

at::Tensor Ranks::total(const at::Tensor& share) const {
  if (!world_) return share;
  at::Tensor total = share.detach().clone();
  if (options_.sequence_parallel) sum_over(tensor_parallel_, total);
  if (options_.dp * options_.cp > 1) sum_over(data_parallel_, total);
  return total;
}

void Ranks::add_gradients(torch::nn::Module& model) const {
  if (!world_) return;
  for (const PlacedParameter& parameter : list_parameters(model)) {
    const at::Tensor& gradient = parameter.value.grad();
    const bool is_divided = parameter.placement.partition_dim.has_value();
    // With sequence parallelism, a rank has the gradient of its rows only.
    if (options_.sequence_parallel && !is_divided) sum_over(tensor_parallel_, gradient);
    if (options_.dp * options_.cp > 1) sum_over(data_parallel_, gradient);
  }
}

telens::ProcessGroupPtr Ranks::group_for_comparisons(std::chrono::milliseconds timeout) const {
  return make_group(
      world_,
      {.ranks = every(1, 0, place_.ranks), .description = "comparisons", .timeout = timeout});
}

void Ranks::wait_for_all() const {
  if (world_) gpt::wait_for_all(world_);
}

}  // namespace gpt
