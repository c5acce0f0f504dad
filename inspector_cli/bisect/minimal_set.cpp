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

}  // namespace

std::vector<std::size_t> minimal_set(std::size_t count, const PassesWith& passes) {
  std::vector<std::size_t> needed;
  std::size_t passing = count;  // a prefix of this length passes with what is needed
  while (passing > 0) {
    std::size_t shortest = 1;
    while (shortest < passing) {
      const std::size_t half = (shortest + passing - 1) / 2;
      if (passes(with_prefix(needed, half))) {
        passing = half;
      } else {
        shortest = half + 1;
      }
    }
    needed.push_back(--passing);
    if (passing > 0 && passes(with_prefix(needed, 0))) break;
  }
  return needed;
}

}  // namespace telens::cli
