// Attention masks against their definition, position by position.
#include "core/modules/attention/attention_mask.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/error.h"

namespace telens {
namespace {

constexpr std::int64_t kBatch = 4;

// Sequences padded to `length` positions. Sample i has lengths[i] positions of its own; padding is
// after or before them.
struct Sequences {
  std::int64_t length;
  std::vector<std::int64_t> lengths;
  bool padded_in_front;

  bool is_padding(std::int64_t sample, std::int64_t position) const {
    const std::int64_t own = lengths[static_cast<std::size_t>(sample)];
    return padded_in_front ? position < length - own : position >= own;
  }
  // The index of a position among the sample's own positions.
  std::int64_t place(std::int64_t sample, std::int64_t position) const {
    const std::int64_t own = lengths[static_cast<std::size_t>(sample)];
    return padded_in_front ? position - (length - own) : position;
  }
  at::Tensor mask() const {
    at::Tensor mask = at::zeros({kBatch, 1, 1, length}, at::kBool);
    for (std::int64_t sample = 0; sample < kBatch; ++sample) {
      for (std::int64_t i = 0; i < length; ++i) mask[sample][0][0][i] = is_padding(sample, i);
    }
    return mask;
  }
};

const std::vector<std::string> kTypes{"no_mask",
                                      "padding",
                                      "causal",
                                      "padding_causal",
                                      "causal_bottom_right",
                                      "padding_causal_bottom_right",
                                      "causal,padding",
                                      "padding,causal"};

bool contains(const std::string& text, const char* word) {
  return text.find(word) != std::string::npos;
}

// The definition: whether query i of a sample sees key j.
bool sees(const std::string& type, const Sequences& queries, const Sequences& keys,
          std::int64_t sample, std::int64_t i, std::int64_t j) {
  std::int64_t query = i, key = j, surplus = keys.length - queries.length;
  if (contains(type, "padding")) {
    if (queries.is_padding(sample, i) || keys.is_padding(sample, j)) return false;
    query = queries.place(sample, i);
    key = keys.place(sample, j);
    const auto at = static_cast<std::size_t>(sample);
    surplus = keys.lengths[at] - queries.lengths[at];
  }
  if (!contains(type, "causal")) return true;
  return key <= query + (contains(type, "bottom_right") ? surplus : 0);
}

void expect_definition(const std::string& type, const Sequences& queries, const Sequences& keys,
                       const std::vector<at::Tensor>& masks) {
  const AttentionSizes sizes{kBatch, queries.length, keys.length};
  const AttentionMask mask =
      MaskRule(mask_type_from_name(type), AttentionSpan(), masks, sizes, at::Device(at::kCPU))
          .whole();
  at::Tensor allowed = at::ones({queries.length, keys.length}, at::kBool);
  if (mask.is_causal) allowed = allowed.tril();
  if (mask.allowed) {
    // Kernels differ for a query that sees no key, so these tests have none.
    EXPECT_TRUE(mask.allowed->any(-1).all().item<bool>()) << type;
    allowed = mask.allowed->logical_and(mask.blind->logical_not());
  }
  allowed = allowed.expand({kBatch, 1, queries.length, keys.length});
  for (std::int64_t sample = 0; sample < kBatch; ++sample) {
    for (std::int64_t i = 0; i < queries.length; ++i) {
      for (std::int64_t j = 0; j < keys.length; ++j) {
        ASSERT_EQ(allowed[sample][0][i][j].item<bool>(), sees(type, queries, keys, sample, i, j))
            << type << ", sample " << sample << ", query " << i << ", key " << j
            << (queries.padded_in_front ? ", queries" : "")
            << (keys.padded_in_front ? ", keys" : "");
      }
    }
  }
}

TEST(AttentionMask, every_type_matches_its_definition_for_every_padding) {
  for (const std::string& type : kTypes) {
    for (const bool queries_in_front : {false, true}) {
      for (const bool keys_in_front : {false, true}) {
        const Sequences queries{4, {4, 1, 2, 3}, queries_in_front};
        for (const auto& lengths : {std::vector<std::int64_t>{6, 6, 6, 6}, {6, 2, 5, 1}}) {
          const Sequences keys{6, lengths, keys_in_front};
          expect_definition(type, queries, keys, {queries.mask(), keys.mask()});
        }
        const Sequences shorter{3, {3, 2, 1, 3}, keys_in_front};
        expect_definition(type, queries, shorter, {queries.mask(), shorter.mask()});
      }
      const Sequences self{5, {5, 2, 1, 4}, queries_in_front};
      expect_definition(type, self, self, {self.mask()});
    }
  }
}

}  // namespace
}  // namespace telens
