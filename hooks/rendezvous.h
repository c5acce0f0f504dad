// The ranks of a world begin a session: all of them together, none where one refuses, and each for
// itself where one does not come.
//
// It goes by the world's store, beside its collectives. A rank that watches nothing never comes
// here: its next collective is one of the training's, which would take ours for its own.
//
// Why all ranks do the same, and none waits for ever:
// 1. A rendezvous has one decision (all came, one refused, some are missing), which the store's
//    compareSet takes from the first rank that proposes one, so that every rank reads the same.
// 2. A rank writes that it came before it counts: the last to count proposes that all came, and one
//    whose time has passed proposes what it sees missing, so each wait ends.
// 3. A rank takes part in each rendezvous once, in the order of their numbers, and goes to the
//    lowest that is not over; one that is not decided is never over.
// 4. One without some ranks is over once any of its ranks has ended its session, and a refusal once
//    the others would no longer have been waited for: a rank that was not there passes both by.
// 5. So ranks that call with no session among them meet under one number, whichever they skipped.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hooks/session_options.h"

namespace telens {

struct Attendance {
  bool is_complete = true;        // false: each rank is alone
  std::vector<int> missing = {};  // not empty where it is incomplete
  int first = 0;                  // the lowest rank that came
  std::string run_id = {};        // the same for all that are alone; "": each has its own
  std::string explanation = {};   // a sentence for the user; "" where all have come
  // To be let go of when the session of a rank that is alone ends.
  std::shared_ptr<void> presence = {};
};

struct RendezvousOptions {
  // Throws what this rank refuses.
  std::function<void()> accept;
  // Is told what is waited for; called on the lowest rank that waits.
  std::function<void(const std::string&)> on_wait = [](const std::string&) {};
  // Names the run of ranks that are alone; called on one of them.
  std::function<std::string()> name_run = [] { return std::string(); };
  // Throws what the user interrupts the wait with; called at least twice a second.
  std::function<void()> check_interrupt = [] {};
};

// Every rank of the world calls it. Where `accept` throws on one, that rank throws what was thrown,
// at once, and the others a UsageError that names it. A rank is waited for half as long as the
// world's collectives and its store's calls may take, and five minutes at most. Without a store
// that can decide, all have to come.
Attendance join_rendezvous(const debug::ReductionGroup& world, const RendezvousOptions& options);

// In its place, on a rank that has an error of its own. Throws nothing.
void refuse_rendezvous(const debug::ReductionGroup& world) noexcept;

// The same of a rank that has a session already: ranks that wait for it do so no longer, and those
// that have not come hear nothing, since all may meet once it has ended that session.
void end_wait_of_others(const debug::ReductionGroup& world) noexcept;

}  // namespace telens
