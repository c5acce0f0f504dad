// What the reads of one tensor add to, as far as their requests are equal.
#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "core/ops/statistics.h"
#include "features/block_copies.h"
#include "features/statistics/requests.h"

namespace telens::features {

// Of one RequestSet, on one device: its casts, block casts and blocks in their order.
struct Accumulators {
  at::Tensor sums;                           // statistics_words(casts)
  std::vector<at::Tensor> block_casts = {};  // kCastSumsWords each
  std::vector<at::Tensor> ranges = {};       // kBlockRangesWords each

  static Accumulators of_nothing(const RequestSet& set, const at::Device& device);

  // All but the sums, which may be kept apart.
  void add_blocks(const at::Tensor& x, const RequestSet& set, std::span<const BlockCopy> copies,
                  bool both_orientations);
  void add(const at::Tensor& x, const RequestSet& set, const ops::StatisticsCasts& casts,
           std::span<const BlockCopy> copies, bool both_orientations);

  // Of an equal RequestSet, on the same device.
  void copy_from(const Accumulators& other);
  void reset();
};

// Accumulators that were used and are needed no more. Memory that is first allocated while a graph
// is captured holds nothing before the graph runs, so what it adds to must come from here.
class SpareAccumulators {
 public:
  void add(Accumulators accumulators);

  // Neutral ones; made where none are left.
  Accumulators take(const RequestSet& set, const at::Device& device);
  // nullopt where none are left.
  std::optional<Accumulators> take_spare(const RequestSet& set, const at::Device& device);

 private:
  // Of so many words; undefined: there is none.
  static at::Tensor take(std::vector<at::Tensor>& from, std::int64_t words,
                         const at::Device& device);
  // Some of it is undefined where none are left.
  Accumulators take_what_is_left(const RequestSet& set, const at::Device& device);

  std::mutex mutex_;  // over what follows
  std::vector<at::Tensor> sums_, block_casts_, ranges_;
};

}  // namespace telens::features
