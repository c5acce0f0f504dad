#include "hooks/rank_group.h"

#include <algorithm>
#include <cstring>

#include "core/distributed/process_group.h"

namespace telens {

std::chrono::milliseconds RankGroup::longest_wait() const {
  return longest_wait_within(time_limit());
}

std::vector<RankWords> gather_words(const RankWords& words, RankGroup& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  RankWords all(ranks * words.size());
  group.gather(std::as_bytes(std::span(words)), std::as_writable_bytes(std::span(all)));
  std::vector<RankWords> of_ranks;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * words.size());
    of_ranks.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(words.size()));
  }
  return of_ranks;
}

std::vector<std::int64_t> gather_notes(std::int64_t note, RankGroup& group) {
  std::vector<std::int64_t> notes(static_cast<std::size_t>(group.size()));
  group.gather(std::as_bytes(std::span(&note, 1)), std::as_writable_bytes(std::span(notes)));
  return notes;
}

std::vector<std::string> gather_texts(std::string_view text, RankGroup& group) {
  const std::vector<std::int64_t> sizes =
      gather_notes(static_cast<std::int64_t>(text.size()), group);
  std::vector<std::string> texts(sizes.size());
  const auto longest = static_cast<std::size_t>(std::ranges::max(sizes));
  if (longest == 0) return texts;
  std::vector<char> own(longest);
  std::ranges::copy(text, own.begin());
  std::vector<char> all(texts.size() * longest);
  group.gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    texts[rank].assign(all.data() + rank * longest, static_cast<std::size_t>(sizes[rank]));
  }
  return texts;
}

bool has_several_ranks(const RankGroupPtr& group) { return group != nullptr && group->size() > 1; }

std::string get_name(const RankGroupPtr& group) {
  if (!has_several_ranks(group)) return "";
  const std::string description = group->description();
  return description.empty() ? group->name() : description;
}

}  // namespace telens
