// The smallest part of a list that makes a test pass, by few runs of the test.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace telens::cli {

// Runs the test with the items of these indices.
using PassesWith = std::function<bool(const std::vector<std::size_t>& items)>;

// Indices of a smallest set of `count` items that passes, for a test that all items pass and none
// fails, and that stays passed when items are added (it is monotone). Neither of the two is run.
//
// The shortest prefix of the list that passes, together with what is known to be needed, ends in an
// item that is needed: without it the rest of the prefix fails. It is found by cuts, each at 11/20;
// then the search goes on in front of it. So c of n items take at most
//   c (d + 1)
// runs: d cuts, 9 of 200 items, and one to see whether what was found is enough.
std::vector<std::size_t> minimal_set(std::size_t count, const PassesWith& passes);

}  // namespace telens::cli
