// The ranks that train one model: tensor, sequence, context and data parallel.
//   torchrun --no-python --nproc-per-node 2 build/bin/gpt --tp 2 --sp
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "core/distributed/process_group.h"
#include "text.h"

namespace telens {
class TransformerLayer;
struct TransformerLayerOptions;
}  // namespace telens

namespace gpt {

struct RankOptions {
  std::int64_t tp = 1;             // ranks that share each layer
  bool sequence_parallel = false;  // they divide the sequence between the layers too
  std::int64_t cp = 1;             // ranks that share each sequence, in attention too
  std::string cp_comm_type = "p2p";
  std::int64_t dp = 1;  // groups of ranks that share the batch
};

// RANK, LOCAL_RANK and WORLD_SIZE, as torchrun sets them; without them one process.
struct Place {
  std::int64_t rank = 0;
  std::int64_t local_rank = 0;  // on this machine: the number of its GPU
  std::int64_t ranks = 1;
};
// Throws telens::UsageError for other values.
Place place_in_world();

// Throws telens::UsageError unless there are tp * cp * dp processes, or if they do not divide
// batches of this shape.
void check(const RankOptions& options, const Place& place, const BatchShape& shape);

// This process among tp * cp * dp. Ranks of a tensor-parallel group are adjacent, and so are the
// groups that share a sequence.
class Ranks {
 public:
  // Meets the others. The options are checked.
  Ranks(const RankOptions& options, const Place& place, const at::Device& device);

  bool is_first() const { return place_.rank == 0; }
  // Its model has parts that one rank's has not: groups, and parts of weights.
  bool divides_model() const { return options_.tp * options_.cp > 1; }
  const Place& place() const { return place_; }
  // Null for a single rank.
  const telens::ProcessGroupPtr& world() const { return world_; }

  // Sets the options that make a layer a divided one.
  void divide(telens::TransformerLayerOptions& options) const;
  void share_sequences(telens::TransformerLayer& layer) const;
  // The parameters of the whole model, or this rank's part of them.
  void copy_own_part(torch::nn::Module& model, const torch::nn::Module& whole) const;

  Batch own_part(const Batch& batch) const;

  // The weight of this rank's mean loss in the mean over the whole batch.
  double share_of_loss() const;
  // The sum over the ranks that have other bytes.
  at::Tensor total(const at::Tensor& share) const;
  // Sums the ranks' partial gradients, which layers leave to their owner.
  void add_gradients(torch::nn::Module& model) const;

  // All ranks, for the session's comparisons: a failed collective affects only this group.
  telens::ProcessGroupPtr group_for_comparisons(std::chrono::milliseconds timeout) const;
  // No rank leaves while another one is in a collective.
  void wait_for_all() const;

 private:
  void make_groups(const at::Device& device);
  at::Tensor own_bytes(const at::Tensor& bytes) const;

  RankOptions options_;
  Place place_;
  telens::ProcessGroupPtr world_;
  telens::ProcessGroupPtr tensor_parallel_;
  telens::ProcessGroupPtr data_parallel_;  // equal parts of layers, different bytes
  telens::ProcessGroupPtr context_parallel_;
};

}  // namespace gpt
