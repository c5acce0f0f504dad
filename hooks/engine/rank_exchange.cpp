#include "hooks/engine/rank_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <deque>
#include <exception>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/fnv1a.h"
#include "hooks/rank_group.h"
#include "hooks/streams.h"
#include "hooks/tensor_ops.h"

namespace telens::features {
namespace {

using Words = RankWords;

// Overloads for sums of variable size; hooks/statistics/accumulator.h has the others.
void append_words(Words& words, const DefinedSums& sums) { sums.append_words(words); }

template <typename Sums>
void clear(Sums& sums) {
  sums = Sums{};
}
void clear(DefinedSums& sums) { sums.clear(); }

template <typename Sums>
void merge_words(Sums& sums, std::span<const std::int64_t> words) {
  merge(sums, from_words<Sums>(words));
}
void merge_words(DefinedSums& sums, std::span<const std::int64_t> words) {
  sums.merge_words(words);
}

// The serialized sums of a rank.
struct Message {
  Words index;  // key and number of words, per sums
  Words words;  // concatenated sums

  std::size_t size() const { return index.size() + words.size(); }
};

Message get_message(std::span<const SharedSums> own) {
  Message message;
  for (const SharedSums& each : own) {
    const std::size_t before = message.words.size();
    std::visit([&](const auto& sums) { append_words(message.words, sums); }, *each.sums);
    message.index.push_back(static_cast<std::int64_t>(each.key));
    message.index.push_back(static_cast<std::int64_t>(message.words.size() - before));
  }
  return message;
}

std::int64_t compute_hash(const Words& words) {
  std::uint64_t hash = 0;
  for (const std::int64_t word : words) hash = mixed(hash, static_cast<std::uint64_t>(word));
  return static_cast<std::int64_t>(hash);
}

using SumsByKey = std::unordered_map<std::int64_t, std::span<const std::int64_t>>;

SumsByKey unpack(std::span<const std::int64_t> index, std::span<const std::int64_t> words) {
  SumsByKey sums;
  for (std::size_t i = 0; i < index.size(); i += 2) {
    const auto count = static_cast<std::size_t>(index[i + 1]);
    sums.emplace(index[i], words.first(count));
    words = words.subspan(count);
  }
  return sums;
}

// Returns the words for index and sums in the group's next gather of headers: the size of the
// longest recent message. Ranks agree, because they received the same headers.
std::size_t find_room(RankGroup& group) {
  const std::deque<std::size_t>& sizes = group.exchange_sizes();
  return sizes.empty() ? 0 : *std::ranges::max_element(sizes);
}

void note_size(RankGroup& group, std::size_t size) {
  constexpr std::size_t kExchanges = 8;  // the size survives if sums are due in every 8th step only
  std::deque<std::size_t>& sizes = group.exchange_sizes();
  sizes.push_back(size);
  if (sizes.size() > kExchanges) sizes.pop_front();
}

// Returns index and sums, padded to the same size on all ranks, because their keys may differ.
Words with_index(const Message& message, std::size_t size) {
  Words packed = message.index;
  packed.insert(packed.end(), message.words.begin(), message.words.end());
  packed.resize(size);
  return packed;
}

struct Header {
  std::int64_t hash;  // hash of the index
  std::size_t index;  // words
  std::size_t words;
  Notes notes;
  Words rest;  // index and words; empty if they did not fit

  std::size_t size() const { return index + words; }
};

std::vector<Header> gather_headers(const Message& message, const Notes& notes, std::size_t room,
                                   RankGroup& group) {
  Words own{compute_hash(message.index), static_cast<std::int64_t>(message.index.size()),
            static_cast<std::int64_t>(message.words.size())};
  const auto fixed = static_cast<std::ptrdiff_t>(own.size());
  own.insert(own.end(), notes.begin(), notes.end());
  const std::size_t before = own.size();
  const Words rest = message.size() <= room ? with_index(message, room) : Words(room);
  own.insert(own.end(), rest.begin(), rest.end());
  const auto behind = static_cast<std::ptrdiff_t>(before);
  std::vector<Header> headers;
  for (const Words& each : gather_words(own, group)) {
    headers.push_back({.hash = each[0],
                       .index = static_cast<std::size_t>(each[1]),
                       .words = static_cast<std::size_t>(each[2]),
                       .notes = Notes(each.begin() + fixed, each.begin() + behind),
                       .rest = Words(each.begin() + behind, each.end())});
  }
  return headers;
}

}  // namespace

void bring_nothing(AnySums& sums) {
  std::visit([](auto& each) { clear(each); }, sums);
}

std::int64_t compute_hash(std::string_view text) { return static_cast<std::int64_t>(fnv1a(text)); }

std::vector<Notes> merge_over_ranks(std::span<const SharedSums> own, RankGroup& group,
                                    const Notes& note) {
  const Message message = get_message(own);
  const std::size_t had = find_room(group);
  std::vector<Header> headers = gather_headers(message, note, had, group);
  std::vector<Notes> notes;
  for (const Header& each : headers) notes.push_back(each.notes);
  const std::size_t longest = std::ranges::max(headers, {}, &Header::size).size();
  note_size(group, longest);
  if (longest == 0) return notes;

  const bool same_keys = std::ranges::all_of(
      headers, [&](const Header& each) { return each.hash == headers.front().hash; });
  const bool alone = longest > had && same_keys;  // sends sums without the index
  if (longest > had) {
    const std::vector<Words> gathered =
        gather_words(same_keys ? message.words : with_index(message, longest), group);
    for (std::size_t rank = 0; rank < headers.size(); ++rank) headers[rank].rest = gathered[rank];
  }
  std::vector<SumsByKey> ranks;
  for (const Header& each : headers) {
    const std::span<const std::int64_t> packed = each.rest;
    ranks.push_back(alone ? unpack(message.index, packed)
                          : unpack(packed.first(each.index), packed.subspan(each.index)));
  }
  for (const SharedSums& each : own) {
    std::visit(
        [&](auto& sums) {
          clear(sums);
          for (const SumsByKey& rank : ranks) {
            const auto found = rank.find(static_cast<std::int64_t>(each.key));
            if (found != rank.end()) merge_words(sums, found->second);
          }
        },
        *each.sums);
  }
  return notes;
}

namespace {

// One line of a rank's message: its membership in a group.
struct Member {
  int rank = 0;  // in the group
  int size = 0;
  std::string_view which;
};

std::string_view id_in(std::string_view which) { return which.substr(which.find(' ') + 1); }

std::string get_line(const RankGroup& group) {
  return fmt::format("{} {} {}\n", group.rank(), group.size(), group.identity());
}

// Removes the first line from a rank's message and parses it.
Member take_member(std::string_view& text) {
  Member member;
  const char* at = std::from_chars(text.data(), text.data() + text.size(), member.rank).ptr + 1;
  at = std::from_chars(at, text.data() + text.size(), member.size).ptr + 1;
  text.remove_prefix(static_cast<std::size_t>(at - text.data()));
  member.which = text.substr(0, text.find('\n'));
  text.remove_prefix(member.which.size() + 1);
  return member;
}

// The number of ranks that report to be the first, second, ... of a group, by size and name.
using RanksByGroup = std::map<std::pair<int, std::string_view>, std::vector<int>>;

RanksByGroup count_ranks_by_group(std::span<const std::string> texts) {
  RanksByGroup ranks_by_group;
  for (std::string_view text : texts) {
    while (!text.empty()) {
      const Member member = take_member(text);
      auto& ranks = ranks_by_group[{member.size, member.which}];
      ranks.resize(static_cast<std::size_t>(member.size));
      ++ranks.at(static_cast<std::size_t>(member.rank));
    }
  }
  return ranks_by_group;
}

}  // namespace

void WeightGroups::add(const RankGroupPtr& group) {
  const std::lock_guard lock(mutex_);
  known_.try_emplace(group->name(), group);
}

std::int64_t WeightGroups::note(bool shares) {
  const std::lock_guard lock(mutex_);
  shares_ = shares;
  own_text_.clear();
  if (shares) {
    for (const auto& [id, group] : known_) own_text_ += get_line(*group);
  }
  return compute_hash(own_text_);
}

// A group is complete if each of its ranks is reported exactly once. A rank that is reported more
// often means that several groups have the same name; their weights stay local.
Groups WeightGroups::complete_groups(std::span<const std::string> texts) {
  Groups complete;
  const RanksByGroup ranks_by_group = count_ranks_by_group(texts);
  const std::lock_guard lock(mutex_);
  for (const auto& [id, group] : known_) {
    const std::string own = group->identity();
    const auto found = ranks_by_group.find({group->size(), own});
    if (found == ranks_by_group.end()) continue;  // discovered after the note
    if (std::ranges::all_of(found->second, [](int tell) { return tell == 1; })) {
      complete.emplace(id, group);
    }
  }
  return complete;
}

void WeightGroups::look_up(std::span<const std::string> texts, RankGroup& world) {
  for (const auto& [size_and_which, ranks] : count_ranks_by_group(texts)) {
    const std::string id(id_in(size_and_which.second));
    const std::lock_guard lock(mutex_);
    if (known_.contains(id)) continue;
    const RankGroupPtr own = world.find(id);
    if (has_several_ranks(own)) known_.emplace(id, own);
  }
}

// All ranks receive the same notes, so they run the same number of iterations. A rank that finds a
// group changes its note. The loop ends, because the number of groups is finite.
const Groups& WeightGroups::agree(std::vector<std::int64_t> notes, RankGroup& world) {
  if (notes_.empty()) notes_.assign(notes.size(), compute_hash(""));  // no groups
  while (notes != notes_) {
    notes_ = std::move(notes);
    const std::vector<std::string> texts = gather_texts(own_text_, world);
    agreed_ = complete_groups(texts);
    look_up(texts, world);
    notes = gather_notes(note(shares_), world);
  }
  return agreed_;
}

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
