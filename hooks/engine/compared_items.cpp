#include "hooks/engine/compared_items.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "core/base/fnv1a.h"
#include "hooks/streams.h"
#include "hooks/tensor_ops.h"

namespace telens::features {
namespace {

// Words per item: key, part and two words of the digest.
constexpr std::size_t kWords = 4;
using Digest = std::array<std::int64_t, 2>;

// The digests of a rank by the hash of key and part.
using Known = std::unordered_map<std::uint64_t, Digest>;

std::uint64_t make_address(std::int64_t key, std::int64_t part) {
  return mixed(static_cast<std::uint64_t>(key), static_cast<std::uint64_t>(part));
}

Known read(std::span<const std::int64_t> words) {
  Known known;
  for (std::size_t i = 0; i + kWords <= words.size(); i += kWords) {
    known.emplace(make_address(words[i], words[i + 1]), Digest{words[i + 2], words[i + 3]});
  }
  return known;
}

// Returns the ranks with the most common digest. Of equally common ones, returns the digest of the
// lowest rank.
const std::vector<int>& most_common(const std::map<Digest, std::vector<int>>& by_digest) {
  const auto most = std::ranges::max_element(by_digest, [](const auto& a, const auto& b) {
    return std::pair(a.second.size(), -a.second.front()) <
           std::pair(b.second.size(), -b.second.front());
  });
  return most->second;
}

}  // namespace

std::uint64_t select_part(std::int64_t rank, std::int64_t size) {
  return mixed(static_cast<std::uint64_t>(size), static_cast<std::uint64_t>(rank + 1));
}

std::uint64_t part_of_group(const RankGroup& group) { return fnv1a(group.identity()); }

void ComparedItems::add(ItemName name, std::uint64_t part, const TensorHandle& digest) {
  const std::uint64_t key = mixed(mixed(fnv1a(name.layer), fnv1a(name.tensor)), fnv1a(name.what));
  const auto [at, is_new] = by_key_.try_emplace(key, items_.size());
  if (is_new) {
    items_.push_back({std::move(name), key, part, digest});
    return;
  }
  Item& known = items_[at->second];
  known.digest = tensor_ops::append_digest(known.digest, digest);
}

void ComparedItems::clear() {
  items_.clear();
  by_key_.clear();
}

RankWords ComparedItems::words() {
  std::vector<TensorHandle> digests;
  for (const Item& each : items_) digests.push_back(each.digest);
  digests = copy_to_host(std::move(digests))->take();
  for (std::size_t i = 0; i < items_.size(); ++i) items_[i].digest = std::move(digests[i]);
  RankWords words;
  for (const Item& each : items_) {
    const auto* digest = each.digest.const_data_ptr<std::int64_t>();
    words.insert(words.end(), {static_cast<std::int64_t>(each.key),
                               static_cast<std::int64_t>(each.part), digest[0], digest[1]});
  }
  return words;
}

std::int64_t ComparedItems::first_word(std::size_t item,
                                       std::span<const std::int64_t> of_rank) const {
  for (std::size_t i = 0; i + kWords <= of_rank.size(); i += kWords) {
    if (of_rank[i] == static_cast<std::int64_t>(items_[item].key)) return of_rank[i + 2];
  }
  return 0;
}

std::vector<Difference> ComparedItems::differences(std::span<const RankWords> of_ranks,
                                                   int own_rank,
                                                   std::vector<Compared>& compared) const {
  std::vector<Known> ranks;
  for (const RankWords& words : of_ranks) ranks.push_back(read(words));
  std::vector<Difference> differences;
  compared.assign(items_.size(), {});
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const std::uint64_t address = mixed(items_[i].key, items_[i].part);
    std::map<Digest, std::vector<int>> by_digest;
    std::size_t peers = 0;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const auto found = ranks[rank].find(address);
      if (found == ranks[rank].end()) continue;
      by_digest[found->second].push_back(static_cast<int>(rank));
      ++peers;
    }
    compared[i].has_peers = peers > 1;
    if (by_digest.size() < 2) continue;
    const std::vector<int>& usual = most_common(by_digest);
    Difference difference{.item = i, .odd = {}, .usual = usual.front()};
    for (const auto& [digest, some] : by_digest) {
      if (&some != &usual) difference.odd.insert(difference.odd.end(), some.begin(), some.end());
    }
    std::ranges::sort(difference.odd);
    compared[i].is_odd = std::ranges::find(difference.odd, own_rank) != difference.odd.end();
    differences.push_back(std::move(difference));
  }
  return differences;
}

}  // namespace telens::features
