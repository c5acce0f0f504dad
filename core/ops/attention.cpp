#include "core/ops/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/fmax.h>
#include <ATen/ops/fmin.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/ops/device.h"
#include "core/ops/dispatcher.h"
#include "core/ops/statistics_layout.h"

namespace telens::ops {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
// exp() of this is 0 in FP32 and FP64. Its product with 0 is 0; -Inf * 0 would be NaN.
constexpr double kFarBelow = -1000;

void check(const AttentionScores& scores) {
  const at::Tensor& query = scores.query;
  const at::Tensor& key = scores.key;
  const bool fits = query.dim() == 4 && key.dim() == 4 && query.size(0) == key.size(0) &&
                    query.size(3) == key.size(3) && key.size(1) > 0 &&
                    query.size(1) % key.size(1) == 0;
  if (!fits) {
    raise<ShapeError>(
        "attention_statistics: query is {} and key {}; expected [batch, heads, seq_q, size] and "
        "[batch, groups, seq_kv, size], of which the groups divide the heads",
        c10::str(query.sizes()), c10::str(key.sizes()));
  }
  if (!at::isFloatingType(query.scalar_type()) || query.scalar_type() != key.scalar_type()) {
    raise<ShapeError>("attention_statistics: query has dtype {} and key {}; expected one of floats",
                      c10::toString(query.scalar_type()), c10::toString(key.scalar_type()));
  }
}

// The samples and queries in a block.
struct Range {
  std::int64_t sample, samples;
  std::int64_t first, queries;
};

// Masks and biases are created for more scores at a time than the scores themselves, because the
// blocks of masks and biases read every key.
constexpr std::int64_t kScoresOfPart = 8 * kScoresOfBlock;

// Calls `call` with blocks of `most` scores. There must be at least one score.
template <typename Call>
void for_ranges(const AttentionScores& scores, std::int64_t most, const Call& call) {
  const std::int64_t batch = scores.query.size(0);
  const std::int64_t queries = scores.query.size(2);
  const std::int64_t of_query = scores.query.size(1) * scores.key.size(2);
  const std::int64_t most_queries = std::clamp<std::int64_t>(most / of_query, 1, queries);
  const std::int64_t most_samples = std::clamp<std::int64_t>(most / (of_query * queries), 1, batch);
  for (std::int64_t sample = 0; sample < batch; sample += most_samples) {
    for (std::int64_t first = 0; first < queries; first += most_queries) {
      call(Range{.sample = sample,
                 .samples = std::min(most_samples, batch - sample),
                 .first = first,
                 .queries = std::min(most_queries, queries - first)});
    }
  }
}

// Selects a range of a tensor that is broadcast to [batch, heads, seq_q, seq_kv].
at::Tensor select_part(const at::Tensor& tensor, const Range& range) {
  at::Tensor part = tensor;
  if (part.dim() == 4 && part.size(0) > 1) part = part.narrow(0, range.sample, range.samples);
  if (part.dim() >= 2 && part.size(-2) > 1) part = part.narrow(-2, range.first, range.queries);
  return part;
}

// Sums over blocks. They stay on the device.
class Sums {
 public:
  static constexpr std::int64_t kScoreCounts = 6;
  static constexpr std::int64_t kRowCounts = 6;
  static constexpr std::int64_t kCounts = kScoreCounts + kRowCounts;
  static_assert(kRowCounts + 2 == kScoreSumsWords);

  explicit Sums(const at::Tensor& like)
      : counts_(at::zeros({kCounts}, like.options().dtype(at::kLong))),
        entropies_(at::zeros({2}, like.options().dtype(at::kDouble))),
        min_(at::full({}, kInf, like.options().dtype(at::kDouble))),
        max_(at::full({}, -kInf, like.options().dtype(at::kDouble))) {}

  // Adds counts of scores (numel, nan, posinf, neginf, zeros, subnormals), then counts of rows, in
  // the order of ScoreSums.
  void add_counts(const std::vector<at::Tensor>& counts) {
    counts_ += at::stack(counts).to(at::kLong);
  }
  void add_entropies(const at::Tensor& entropy, const at::Tensor& share) {
    entropies_ += at::stack({entropy, share});
  }
  void add_extremes(const at::Tensor& smallest, const at::Tensor& largest) {
    min_ = at::fmin(min_, smallest.to(at::kDouble));
    max_ = at::fmax(max_, largest.to(at::kDouble));
  }

  // Adds the words of other scores, so that words() includes them.
  void add_words(const at::Tensor& words) {
    const auto some = [&](std::int64_t first, std::int64_t count) {
      return words.narrow(0, first, count);
    };
    counts_ += at::cat({some(0, kScoreCounts), some(kTensorSumsWords, kRowCounts)});
    entropies_ += some(kTensorSumsWords + kRowCounts, 2).view(at::kDouble);
    min_ = at::fmin(min_, some(kScoreCounts, 1).view(at::kDouble)[0]);
    max_ = at::fmax(max_, some(kScoreCounts + 1, 1).view(at::kDouble)[0]);
  }

  at::Tensor words() const {
    const auto as_words = [](const at::Tensor& values) { return values.view(at::kLong); };
    const at::Tensor smallest_nonzero = at::full({}, kInf, entropies_.options());
    const at::Tensor extremes = at::stack({min_, max_, smallest_nonzero});
    const std::int64_t rest = kTensorSumsWords - kScoreCounts - 3;
    return at::cat({counts_.narrow(0, 0, kScoreCounts), as_words(extremes),
                    at::zeros({rest}, counts_.options()),
                    counts_.narrow(0, kScoreCounts, kRowCounts), as_words(entropies_)});
  }

 private:
  at::Tensor counts_;
  at::Tensor entropies_;
  at::Tensor min_;
  at::Tensor max_;
};

// One block of scores, and which of them are visible.
class Block {
 public:
  Block(const AttentionScores& of, const at::Tensor& keys, const Range& range)
      : of_(of), seen_(seen_in(range)), scores_(scores_in(keys, range)) {}

  void add_to(Sums& sums) const {
    const auto [largest, place] = scores_.max(-1);  // per row; NaN if the row has a NaN
    const at::Tensor keys = seen_.sum(-1).expand_as(largest);
    const at::Tensor is_blind = keys == 0;
    const at::Tensor is_defined = largest.isfinite();
    const at::Tensor is_undefined = is_defined.logical_or(is_blind).logical_not();
    const at::Tensor is_single = (keys == 1).logical_and(is_defined);
    const at::Tensor is_choosing = (keys > 1).logical_and(is_defined);
    const Rows rows = get_rows({largest, place, keys, is_choosing});
    std::vector<at::Tensor> counts = {keys.sum()};
    add_special(counts, sums, largest, is_undefined);
    for (const at::Tensor& each :
         {is_blind, is_undefined, is_single, is_choosing, rows.one_key, rows.first_key}) {
      counts.push_back(each.sum());
    }
    sums.add_counts(counts);
    sums.add_entropies(rows.entropy.sum(), rows.share.sum());
  }

 private:
  // Rows that do not choose have 0 in every member.
  struct Rows {
    at::Tensor entropy, share;      // FP64
    at::Tensor one_key, first_key;  // boolean
  };

  // For each row: its largest score, the position of that score, the number of visible keys, and
  // whether the row chooses.
  struct Largest {
    at::Tensor score, place, keys, is_choosing;
  };

  // Appends the counts of NaN, +Inf, -Inf, zeros and subnormals, and adds the extremes. If the host
  // can read the values, it checks for special values first, because most scores have none.
  void add_special(std::vector<at::Tensor>& counts, Sums& sums, const at::Tensor& largest,
                   const at::Tensor& is_undefined) const {
    const at::Tensor smallest = at::where(seen_, scores_, kInf).amin();
    const at::Tensor none = at::zeros({}, counts.front().options());
    const bool looks = is_on_host(scores_);
    if (looks && !is_undefined.any().item<bool>() && !smallest.isinf().item<bool>()) {
      counts.insert(counts.end(), {none, none, none});
      sums.add_extremes(smallest, largest.amax());
    } else {
      const at::Tensor is_nan = scores_.isnan();
      const at::Tensor is_number = is_nan.logical_not();
      const at::Tensor is_neginf = (scores_ == -kInf).logical_and(seen_);
      counts.insert(counts.end(), {is_nan.sum(), (scores_ == kInf).sum(), is_neginf.sum()});
      sums.add_extremes(at::where(is_number.logical_and(seen_), scores_, kInf).amin(),
                        at::where(is_number, scores_, -kInf).amax());
    }
    const at::Tensor is_tiny = scores_.abs() < double{std::numeric_limits<float>::min()};
    if (looks && !is_tiny.any().item<bool>()) {
      counts.insert(counts.end(), {none, none});
    } else {
      const at::Tensor is_zero = scores_ == 0;
      counts.insert(counts.end(),
                    {is_zero.sum(), is_tiny.logical_and(is_zero.logical_not()).sum()});
    }
  }

  at::Tensor seen_in(const Range& range) const {
    const std::int64_t keys = of_.key.size(2);
    const auto options = of_.query.options();
    at::Tensor seen = at::ones({1, 1, 1, 1}, options.dtype(at::kBool));
    if (of_.allowed) seen = seen.logical_and(select_part(*of_.allowed, range));
    if (of_.blind) seen = seen.logical_and(select_part(*of_.blind, range).logical_not());
    if (of_.bias) seen = seen.logical_and(select_part(*of_.bias, range) != -kInf);
    if (of_.is_causal) {
      const auto integers = options.dtype(at::kLong);
      const at::Tensor query = at::arange(range.first, range.first + range.queries, integers);
      seen = seen.logical_and(at::arange(keys, integers) <= query.unsqueeze(1));
    }
    return seen.expand({-1, -1, range.queries, keys});
  }

  // Returns -Inf for keys that are not visible.
  at::Tensor scores_in(const at::Tensor& keys, const Range& range) const {
    const at::Tensor query = of_.query.narrow(0, range.sample, range.samples)
                                 .narrow(2, range.first, range.queries)
                                 .to(keys.scalar_type());
    at::Tensor scores = at::matmul(query * of_.scale, keys.narrow(0, range.sample, range.samples));
    if (of_.bias) scores.add_(select_part(*of_.bias, range).to(scores.scalar_type()));
    return scores.masked_fill_(seen_.logical_not(), -kInf);
  }

  // Let m be the row's largest exponent, d = score - m, l = sum exp(d) and t = sum d exp(d). The
  // entropy is log(l) - t / l, and the share of the largest key is exp(largest - m) / l.
  Rows get_rows(const Largest& row) const {
    const auto& [score, place, keys, is_choosing] = row;
    const at::Tensor largest = at::where(is_choosing, score, 0.0);
    const at::Tensor sink = of_.has_sink ? sink_offsets() : at::Tensor();
    const at::Tensor top = of_.has_sink ? at::maximum(largest, sink) : largest;
    // Other rows have arbitrary results, which are never used.
    at::Tensor distance = (scores_ - top.unsqueeze(-1)).clamp_min_(kFarBelow);
    const at::Tensor weight = distance.exp();
    at::Tensor sum = weight.sum(-1).to(at::kDouble);
    at::Tensor product = distance.mul_(weight).sum(-1).to(at::kDouble);
    at::Tensor outcomes = keys;
    if (of_.has_sink) {
      const at::Tensor below = (sink - top).clamp_min(kFarBelow).to(at::kDouble);
      sum = sum + below.exp();
      product = product + below * below.exp();
      outcomes = keys + 1;
    }
    const at::Tensor entropy =
        at::where(is_choosing, (sum.log() - product / sum).clamp_min(0), 0.0);
    const at::Tensor share = at::where(is_choosing, entropy / outcomes.to(at::kDouble).log(), 0.0);
    const at::Tensor of_largest = (largest - top).to(at::kDouble).exp() / sum;
    const at::Tensor one_key = (of_largest > kOneKeyShare).logical_and(is_choosing);
    const at::Tensor is_first = place == seen_.to(at::kByte).argmax(-1);
    return {entropy, share, one_key, one_key.logical_and(is_first)};
  }

  at::Tensor sink_offsets() const {
    const auto options = scores_.options();
    return of_.offset ? of_.offset->to(scores_.scalar_type()).reshape({1, -1, 1})
                      : at::zeros({1, 1, 1}, options);
  }

  const AttentionScores& of_;
  at::Tensor seen_;    // boolean, broadcast to the scores along its first two dimensions
  at::Tensor scores_;  // [samples, heads, queries, seq_kv]
};

at::Tensor computed(const AttentionScores& scores) {
  const at::NoGradGuard no_grad;
  check(scores);
  const at::Tensor& query = scores.query;
  Sums sums(query);
  const std::int64_t batch = query.size(0);
  const std::int64_t heads = query.size(1);
  const std::int64_t queries = query.size(2);
  if (batch * heads * queries * scores.key.size(2) == 0) {
    if (batch * heads * queries > 0) {
      const at::Tensor zero = at::zeros({}, query.options().dtype(at::kLong));
      std::vector<at::Tensor> counts(Sums::kCounts, zero);
      counts[Sums::kScoreCounts] = at::full({}, batch * heads * queries, zero.options());  // blind
      sums.add_counts(counts);
    }
    return sums.words();
  }
  const at::ScalarType dtype = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor keys =
      scores.key.to(dtype).repeat_interleave(heads / scores.key.size(1), 1).transpose(-1, -2);
  for_ranges(scores, kScoresOfBlock,
             [&](const Range& range) { Block(scores, keys, range).add_to(sums); });
  return sums.words();
}

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor attention_statistics_by_torch(const at::Tensor& query, const at::Tensor& key,
                                         const OptionalTensor& allowed, const OptionalTensor& blind,
                                         const OptionalTensor& bias, const OptionalTensor& offset,
                                         bool is_causal, bool has_sink, double scale) {
  return computed({.query = query,
                   .key = key,
                   .allowed = allowed,
                   .blind = blind,
                   .bias = bias,
                   .offset = offset,
                   .is_causal = is_causal,
                   .has_sink = has_sink,
                   .scale = scale});
}

at::Tensor attention_statistics_meta(const at::Tensor& query, const at::Tensor& key,
                                     const OptionalTensor&, const OptionalTensor&,
                                     const OptionalTensor&, const OptionalTensor&, bool, bool,
                                     double) {
  check({.query = query, .key = key});
  return at::empty({kTensorSumsWords + kScoreSumsWords}, query.options().dtype(at::kLong));
}

}  // namespace

at::Tensor attention_statistics(const AttentionScores& scores) {
  if (scores.part) {
    check(scores);
    const at::NoGradGuard no_grad;
    Sums sums(scores.query);
    if (scores.query.numel() == 0 || scores.key.size(2) == 0) return computed(scores);
    for_ranges(scores, kScoresOfPart, [&](const Range& range) {
      sums.add_words(attention_statistics(
          scores.part(range.sample, range.samples, range.first, range.queries)));
    });
    return sums.words();
  }
  static const auto op =
      find_operator<decltype(attention_statistics_by_torch)>("telens::attention_statistics");
  return op.call(scores.query, scores.key, scores.allowed, scores.blind, scores.bias, scores.offset,
                 scores.is_causal, scores.has_sink, scores.scale);
}

namespace {

using Signature = at::Tensor&(at::Tensor&, std::int64_t, double, at::IntArrayRef);

at::Tensor& keyed_dropout_meta(at::Tensor& weights, std::int64_t, double probability,
                               at::IntArrayRef place) {
  check_keyed_dropout(weights, probability, place);
  return weights;
}

}  // namespace

void check_keyed_dropout(const at::Tensor& weights, double probability, at::IntArrayRef place) {
  const bool has_type = weights.scalar_type() == at::kFloat || weights.scalar_type() == at::kDouble;
  if (!has_type || weights.dim() != 4 || !weights.is_contiguous()) {
    raise<ShapeError>(
        "keyed_dropout_: weights are {} of shape {}; expected Float or Double, contiguous "
        "[samples, heads, queries, keys]",
        c10::toString(weights.scalar_type()), c10::str(weights.sizes()));
  }
  if (!(probability >= 0 && probability <= 1) || place.size() != 4) {
    raise<UsageError>(
        "keyed_dropout_: probability is {} and the place has {} numbers; expected 0 to 1, and 4 of "
        "the first weight",
        probability, place.size());
  }
}

void keyed_dropout_(const at::Tensor& weights, const KeyedDropout& dropout) {
  static const auto op = find_operator<Signature>("telens::keyed_dropout_");
  at::Tensor in_place = weights;
  op.call(in_place, dropout.seed, dropout.probability,
          {dropout.sample, dropout.head, dropout.query, dropout.key});
}

}  // namespace telens::ops

TORCH_LIBRARY_IMPL(telens, CompositeExplicitAutograd, library) {
  library.impl("attention_statistics", TORCH_FN(telens::ops::attention_statistics_by_torch));
}

TORCH_LIBRARY_IMPL(telens, Meta, library) {
  library.impl("attention_statistics", TORCH_FN(telens::ops::attention_statistics_meta));
  library.impl("keyed_dropout_", TORCH_FN(telens::ops::keyed_dropout_meta));
}
