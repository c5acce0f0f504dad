// The ranks of a world begin a session: all of them together, none where one refuses, and each for
// itself where one does not come.
//
// It goes by the world's store, beside its collectives. A rank that watches nothing never comes
// here: its next collective is one of the training's, which would take ours for its own.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hooks/session_options.h"

namespace telens {

struct RollCall {
  bool is_complete = true;  // false: each rank is alone
  std::vector<int> missing = {};
  int first = 0;            // the lowest rank that came
  std::string run_id = {};  // the same for all that are alone; "": each has its own
  std::string why = {};     // a sentence for the user; "" where all have come
};

struct RollCallOptions {
  // Throws what this rank refuses.
  std::function<void()> accept;
  // Is told, while this rank waits, what for.
  std::function<void(const std::string&)> on_wait = [](const std::string&) {};
  // Names the run of ranks that are alone; called on one of them.
  std::function<std::string()> name_run = [] { return std::string(); };
};

// Every rank of the world calls it. Where `accept` throws on one, that rank throws what was thrown,
// at once, and the others a UsageError that names it. A rank is waited for as long as the store's
// calls may take, five minutes at most. Without a store all have to come.
RollCall call_ranks(const debug::ReductionGroup& world, const RollCallOptions& options);

}  // namespace telens
