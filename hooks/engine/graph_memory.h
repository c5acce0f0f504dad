// Memory that graphs of one device add to and look at. Memory that is first allocated while a graph
// is captured holds nothing before the graph runs, so all of it is made ahead, on every device with
// graphs on which a watched layer runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/engine/accumulators.h"

namespace telens::features {

// Tells graphs if a read is due: one word a read.
class Gates {
 public:
  static constexpr std::int64_t kMost = 1 << 16;

  // All open. Not while a graph is captured.
  explicit Gates(const at::Device& device);

  // The gate of the next read. Throws UsageError after kMost.
  std::int64_t add();
  const std::int64_t* word(std::int64_t gate) const;

  void set(std::int64_t gate, bool open);
  bool is_open(std::int64_t gate) const { return wanted_[static_cast<std::size_t>(gate)] != 0; }
  // Sends what has changed to the device, in the order of its current stream.
  void update();
  // For good; what graphs look at is never freed.
  void shut();

 private:
  at::Tensor words_;  // int64 [kMost]
  std::vector<std::int64_t> wanted_;
  bool changed_ = false;
};

// Neutral accumulators, not yet added to.
class AccumulatorReserve {
 public:
  // The most casts of one read; more are refused.
  static constexpr std::int64_t kMostCasts = 8;
  // The tensors of a layer, and two of them with another request: without a recipe, for example.
  static constexpr std::int64_t kReadsOfLayer = 8;

  // Not while a graph is captured; nor the next one.
  explicit AccumulatorReserve(const at::Device& device);
  // There is enough again for reads of so many layers more.
  void refill(std::int64_t layers);

  // For good; nullopt where there is not enough left.
  std::optional<Accumulators> take(const RequestSet& set);
  // Makes them neutral again, in the order of the device's current stream.
  void reset(Accumulators& accumulators) const;
  // Graphs of an ended session still add to what was taken.
  void keep_for_good();

 private:
  // Equal rows, of which a front part is neutral too.
  class Rows {
   public:
    Rows(at::Tensor neutral, std::int64_t a_layer);
    void refill(std::int64_t layers);
    bool has(std::size_t rows) const { return free_.size() >= rows; }
    at::Tensor take(std::int64_t words);
    void reset(at::Tensor& row) const;
    void keep_for_good();

   private:
    at::Tensor neutral_;  // int64 [words]
    std::int64_t a_layer_;
    std::vector<at::Tensor> blocks_;
    std::vector<at::Tensor> free_;
  };

  Rows sums_, block_casts_, ranges_;
};

class GraphMemory {
 public:
  // Not while a graph is captured.
  explicit GraphMemory(const at::Device& device) : gates(device), reserve(device) {}

  // Not while a graph is captured; nor the next one.
  void add_layer(std::string_view name);
  void refill() { reserve.refill(static_cast<std::int64_t>(layers_.size())); }

  Gates gates;
  AccumulatorReserve reserve;

 private:
  std::set<std::string, std::less<>> layers_;
};

}  // namespace telens::features
