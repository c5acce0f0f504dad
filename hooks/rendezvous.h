// The ranks of a world begin a session: all ranks together, none if one refuses, and each
// separately if one is missing.
//
// The rendezvous uses the world's store, not its collectives. A rank that watches nothing never
// calls it: its next collective belongs to the training and would be matched with ours.
//
// Why all ranks do the same, and none waits forever:
// 1. A rendezvous has one decision (all came, one refused, some are missing). The store accepts it
//    from the first rank that proposes one (set_if_missing), so that every rank reads the same.
// 2. A rank writes that it came before it counts. The last rank to count proposes that all came,
//    and a rank whose time has passed proposes the ranks that it sees missing, so each wait ends.
// 3. A rank takes part in each rendezvous once, in the order of their numbers, and enters the
//    lowest one that is not over; an undecided rendezvous is never over.
// 4. A rendezvous with missing ranks is over once any of its ranks has ended its session. A refused
//    one is over once the other ranks would have stopped waiting. A rank that was absent skips
//    both.
// 5. So ranks that call without an open session meet under one number, whichever numbers they
//    skipped.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hooks/rank_group.h"

namespace telens {

struct Attendance {
  bool is_complete = true;        // false if each rank runs separately
  std::vector<int> missing = {};  // not empty if it is incomplete
  int first = 0;                  // lowest rank that came
  std::string run_id = {};        // shared by all separate ranks; "" if each has its own
  std::string explanation = {};   // a sentence for the user; "" if all ranks came
  // Release it when the session of a separate rank ends.
  std::shared_ptr<void> presence = {};
};

struct RendezvousOptions {
  // Throws if this rank refuses the session.
  std::function<void()> accept;
  // Receives a description of the wait; called on the lowest rank that waits.
  std::function<void(const std::string&)> on_wait = [](const std::string&) {};
  // Names the run of separate ranks; called on one of them.
  std::function<std::string()> name_run = [] { return std::string(); };
  // Throws if the user interrupts the wait; called at least twice a second.
  std::function<void()> check_interrupt = [] {};
};

// Every rank of the world calls it. If `accept` throws on a rank, that rank rethrows the exception
// at once, and the other ranks throw a UsageError that names it. The timeout for a rank is half of
// the timeout of the world's collectives and its store's calls, and at most five minutes. If the
// store does not support decisions, all ranks have to come.
Attendance join_rendezvous(const RankGroupPtr& world, const RendezvousOptions& options);

// Call this instead on a rank that has an error of its caller. Does not throw.
void refuse_rendezvous(const RankGroupPtr& world) noexcept;

// Call this on a rank that already has a session: ranks that wait for it stop waiting. Ranks that
// have not come yet are not notified, since all may meet once it has ended that session.
void end_wait_of_others(const RankGroupPtr& world) noexcept;

}  // namespace telens
