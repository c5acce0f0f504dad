#include "hooks/engine/rank_exchange.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/fnv1a.h"
#include "core/distributed/state_by_group.h"
#include "hooks/gather_over_ranks.h"

namespace telens::features {
namespace {

using Words = RankWords;

// Sums that have a size of their own, in place of hooks/statistics/accumulator.h.
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

// A rank's sums as they travel.
struct Message {
  Words index;  // for each of the sums: its key, its number of words
  Words words;  // the sums one after the other

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

// The room for index and sums that a group's next gather has behind the headers: that of the
// longest of its last messages. All ranks have seen the same headers, so they agree.
class Room {
 public:
  std::size_t size() const { return taken_.empty() ? 0 : *std::ranges::max_element(taken_); }
  void note(std::size_t taken) {
    taken_.push_back(taken);
    if (taken_.size() > kExchanges) taken_.pop_front();
  }

 private:
  static constexpr std::size_t kExchanges = 8;  // sums of every eighth step keep their room
  std::deque<std::size_t> taken_;
};

Room& find_room(c10d::ProcessGroup& group) {
  static std::mutex mutex;
  static auto& all = *new StateByGroup<Room>;
  const std::lock_guard lock(mutex);
  return all.of(group);
}

// Index and sums, padded to a size that all ranks have, since their keys may differ.
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
  Words rest;  // index and words, where they had room

  std::size_t size() const { return index + words; }
};

std::vector<Header> gather_headers(const Message& message, const Notes& notes, std::size_t room,
                                   c10d::ProcessGroup& group) {
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

std::vector<Notes> merge_over_ranks(std::span<const SharedSums> own, c10d::ProcessGroup& group,
                                    const Notes& note) {
  const Message message = get_message(own);
  Room& room = find_room(group);
  const std::size_t had = room.size();
  std::vector<Header> headers = gather_headers(message, note, had, group);
  std::vector<Notes> notes;
  for (const Header& each : headers) notes.push_back(each.notes);
  const std::size_t longest = std::ranges::max(headers, {}, &Header::size).size();
  room.note(longest);
  if (longest == 0) return notes;

  const bool same_keys = std::ranges::all_of(
      headers, [&](const Header& each) { return each.hash == headers.front().hash; });
  const bool alone = longest > had && same_keys;  // sums without the index
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

}  // namespace telens::features
