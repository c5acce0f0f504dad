#include "inspector_cli/bisect/minimal_set.h"

#include <numeric>

namespace telens::cli {
namespace {

// The items that are needed, and the first `length` ones.
std::vector<std::size_t> with_prefix(const std::vector<std::size_t>& needed, std::size_t length) {
  std::vector<std::size_t> items(length);
  std::iota(items.begin(), items.end(), std::size_t{0});
  items.insert(items.end(), needed.rbegin(), needed.rend());  // later ones stand further ahead
  return items;
}

// Where to cut between the shortest prefix that may pass and one that does. The last one of several
// items that lie anywhere lies rather behind the middle: two of 2/3, three of 3/4.
std::size_t cut(std::size_t shortest, std::size_t passing) {
  constexpr std::size_t kPart = 11, kOf = 20;
  return shortest + (passing - 1 - shortest) * kPart / kOf;
}

}  // namespace

std::vector<std::size_t> minimal_set(std::size_t count, const PassesWith& passes) {
  std::vector<std::size_t> needed;
  std::size_t passing = count;  // a prefix of this length passes with what is needed
  while (passing > 0) {
    std::size_t shortest = 1;
    while (shortest < passing) {
      const std::size_t length = cut(shortest, passing);
      if (passes(with_prefix(needed, length))) {
        passing = length;
      } else {
        shortest = length + 1;
      }
    }
    needed.push_back(--passing);
    if (passing > 0 && passes(with_prefix(needed, 0))) break;
  }
  return needed;
}

}  // namespace telens::cli
