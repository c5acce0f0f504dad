#include "core/modules/attention/score_block.h"

#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <array>

#include "core/ops/attention.h"
#include "core/ops/device.h"

namespace telens {
namespace {

// More queries per block save no work, and a causal mask then skips fewer keys.
constexpr std::int64_t kMostQueries = 256;
// 128 MiB of FP32: enough work for all multiprocessors of a GPU.
constexpr std::int64_t kScoresOnDevice = std::int64_t{1} << 25;

at::Tensor part(const at::Tensor& x, std::int64_t dim, std::int64_t first, std::int64_t count) {
  return x.size(dim) == count ? x : x.narrow(dim, first, count);
}

struct BlockSize {
  std::int64_t samples, groups, queries;
};

BlockSize block_size(const ScoreShape& shape, std::int64_t most) {
  const std::int64_t of_sample = shape.scores() / shape.batch;
  if (of_sample <= most) {
    return {std::clamp<std::int64_t>(most / of_sample, 1, shape.batch), shape.groups,
            shape.queries};
  }
  const std::int64_t of_query = shape.heads_of_group() * shape.keys;
  const std::int64_t queries =
      std::clamp<std::int64_t>(most / of_query, 1, std::min(shape.queries, kMostQueries));
  return {1, std::clamp<std::int64_t>(most / (of_query * queries), 1, shape.groups), queries};
}

// [samples, heads, n, size] -> [samples, groups, heads of a group * n, size], and back.
at::Tensor heads_by_group(const at::Tensor& x, std::int64_t groups) {
  return x.reshape({x.size(0), groups, x.size(1) / groups * x.size(2), x.size(3)});
}

at::Tensor groups_by_head(const at::Tensor& x, std::int64_t heads) {
  return x.reshape({x.size(0), heads, x.size(1) * x.size(2) / heads, x.size(3)});
}

KeyRange keys_in(const BlockedScores& blocks, const ScoreBlock& block) {
  if (!blocks.keys) return {0, blocks.shape.keys};
  const KeyRange range = blocks.keys(block);
  const std::int64_t first = std::clamp<std::int64_t>(range.first, 0, blocks.shape.keys - 1);
  return {first, std::clamp(range.last, first + 1, blocks.shape.keys)};
}

}  // namespace

ScoreShape score_shape(const at::Tensor& query, const at::Tensor& key) {
  return {.batch = query.size(0),
          .heads = query.size(1),
          .groups = key.size(1),
          .queries = query.size(2),
          .keys = key.size(2)};
}

at::Tensor ScoreBlock::of_queries(const at::Tensor& x) const {
  return part(part(part(x, 0, sample, samples), 1, head(), heads()), 2, query, queries);
}

at::Tensor ScoreBlock::of_keys(const at::Tensor& x) const {
  return part(part(part(x, 0, sample, samples), 1, group, groups), 2, key, keys);
}

at::Tensor ScoreBlock::of_scores(const at::Tensor& x) const {
  const std::array firsts{sample, head(), query, key};
  const std::array counts{samples, heads(), queries, keys};
  const std::int64_t missing = std::ssize(firsts) - x.dim();
  at::Tensor some = x;
  for (std::int64_t dim = 0; dim < x.dim(); ++dim) {
    const auto at = static_cast<std::size_t>(dim + missing);
    if (x.size(dim) != 1) some = part(some, dim, firsts[at], counts[at]);
  }
  return some;
}

ScoreBlock whole_block(const ScoreShape& shape) {
  return {.sample = 0,
          .samples = shape.batch,
          .group = 0,
          .groups = shape.groups,
          .query = 0,
          .queries = shape.queries,
          .key = 0,
          .keys = shape.keys,
          .heads_of_group = shape.heads_of_group()};
}

at::Tensor compute_products(const at::Tensor& query, const at::Tensor& key) {
  return groups_by_head(at::matmul(heads_by_group(query, key.size(1)), key.transpose(-1, -2)),
                        query.size(1));
}

at::Tensor sum_over_keys(const at::Tensor& weights, const at::Tensor& rows) {
  return groups_by_head(at::matmul(heads_by_group(weights, rows.size(1)), rows), weights.size(1));
}

at::Tensor sum_over_queries(const at::Tensor& weights, const at::Tensor& rows,
                            std::int64_t groups) {
  return at::matmul(heads_by_group(weights, groups).transpose(-1, -2),
                    heads_by_group(rows, groups));
}

void for_score_blocks(const BlockedScores& blocks,
                      const std::function<void(const ScoreBlock&)>& call) {
  const ScoreShape& shape = blocks.shape;
  if (shape.scores() == 0) return;
  const BlockSize size = block_size(shape, blocks.scores_of_block);
  ScoreBlock block = whole_block(shape);
  for (block.sample = 0; block.sample < shape.batch; block.sample += size.samples) {
    block.samples = std::min(size.samples, shape.batch - block.sample);
    for (block.query = 0; block.query < shape.queries; block.query += size.queries) {
      block.queries = std::min(size.queries, shape.queries - block.query);
      const KeyRange keys = keys_in(blocks, block);
      block.key = keys.first;
      block.keys = keys.last - keys.first;
      for (block.group = 0; block.group < shape.groups; block.group += size.groups) {
        block.groups = std::min(size.groups, shape.groups - block.group);
        call(block);
      }
    }
  }
}

BlockLimits& block_limits() {
  static BlockLimits limits;
  return limits;
}

std::int64_t scores_of_block(const at::Tensor& query) {
  const BlockLimits& limits = block_limits();
  return ops::is_on_host(query) ? limits.of_block : kScoresOnDevice;
}

ScoreDropout ScoreDropout::seeded(double probability) {
  ScoreDropout dropout;
  dropout.probability_ = probability;
  if (probability != 0) {
    dropout.seed_ = at::empty({1}, at::kLong).random_().item<std::int64_t>();
  }
  return dropout;
}

ScoreDropout ScoreDropout::drawn(const ScoreShape& shape, const at::Tensor& query,
                                 double probability) {
  ScoreDropout dropout;
  dropout.probability_ = probability;
  if (probability != 0) {
    const at::Tensor like = at::empty({shape.batch, shape.heads, shape.queries, shape.keys},
                                      query.options().dtype(at::kFloat));
    dropout.choices_ = at::bernoulli(like, 1 - probability).to(at::kBool);
  }
  return dropout;
}

void ScoreDropout::apply(const at::Tensor& weights, const ScoreBlock& block) const {
  if (probability_ == 0) return;
  if (choices_.defined()) {
    weights.mul_(block.of_scores(choices_));
    if (probability_ != 1) weights.div_(1 - probability_);  // all dropped if 1
    return;
  }
  ops::keyed_dropout_(weights, {.seed = seed_,
                                .probability = probability_,
                                .sample = block.sample,
                                .head = block.head(),
                                .query = block.query,
                                .key = block.key});
}

}  // namespace telens
