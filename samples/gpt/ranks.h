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
  std::int64_t tp = 1;             // tensor-parallel size: ranks that share each layer
  bool sequence_parallel = false;  // also divides the sequence between the layers
  std::int64_t cp = 1;             // context-parallel size: ranks that share each sequence
  std::string cp_comm_type = "p2p";
  std::int64_t dp = 1;  // data-parallel size
};

// RANK, LOCAL_RANK and WORLD_SIZE as torchrun sets them. One process if they are not set.
struct Place {
  std::int64_t rank = 0;
  std::int64_t local_rank = 0;  // rank on this machine; also the index of its GPU
  std::int64_t ranks = 1;
};
// Throws telens::UsageError for invalid values of these variables.
Place place_in_world();

// Throws telens::UsageError unless there are tp * cp * dp processes and batches of this shape can
// be divided among them.
void check(const RankOptions& options, const Place& place, const BatchShape& shape);

// The groups of this process among tp * cp * dp ranks. The ranks of a tensor-parallel group have
// consecutive numbers, and so have the ranks that share a sequence.
class Ranks {
 public:
  // Waits for the other ranks. `options` must have passed check().
  Ranks(const RankOptions& options, const Place& place, const at::Device& device);

  bool is_first() const { return place_.rank == 0; }
  // Returns true if weights or sequences are divided, so that the model has process groups.
  bool divides_model() const { return options_.tp * options_.cp > 1; }
  const Place& place() const { return place_; }
  // Null for a single rank.
  const telens::ProcessGroupPtr& world() const { return world_; }

  // Sets the options of a tensor-parallel layer.
  void divide(telens::TransformerLayerOptions& options) const;
  // Sets the context-parallel group of a layer.
  void share_sequences(telens::TransformerLayer& layer) const;
  // Copies the parameters of the whole model, or this rank's part of them.
  void copy_own_part(torch::nn::Module& model, const torch::nn::Module& whole) const;

  // Returns this rank's part of a batch.
  Batch own_part(const Batch& batch) const;

  // Returns the weight of this rank's mean loss in the mean over the whole batch.
  double share_of_loss() const;
  // Returns the sum over the ranks that have different parts of the batch.
  at::Tensor total(const at::Tensor& share) const;
  // Sums the partial gradients over ranks. Layers leave this to the program.
  void add_gradients(torch::nn::Module& model) const;

  // Creates a group of all ranks for the session's comparisons: a failed collective then does not
  // affect the training's groups.
  telens::ProcessGroupPtr group_for_comparisons(std::chrono::milliseconds timeout) const;
  // A barrier, so that no rank exits while another one is in a collective.
  void wait_for_all() const;

 private:
  void make_groups(const at::Device& device);
  at::Tensor own_bytes(const at::Tensor& bytes) const;

  RankOptions options_;
  Place place_;
  telens::ProcessGroupPtr world_;
  telens::ProcessGroupPtr tensor_parallel_;
  telens::ProcessGroupPtr data_parallel_;  // same part of the layers, different parts of the batch
  telens::ProcessGroupPtr context_parallel_;
};

}  // namespace gpt
