// Compares the next step of the ranks in a group before they block in mismatched collectives.
//
// Uses the group's store, not its collectives: a rank that has nothing to compare may already be in
// the next collective, which would receive our message.
#pragma once

#include <functional>
#include <string>

#include "core/distributed/process_group.h"

namespace telens {

// A statement of this rank: "{subject}: rank 0 of {group_name} {text}, rank 1 {text}; {hint}".
struct RankClaim {
  const std::string& subject;  // a layer's name
  const char* group_name;      // the argument's name, "tp_group"
  std::string text;
  const char* hint;
  // Appended to the text, computed only if ranks compare: contents that differ in each call but
  // should not trigger a comparison. May be empty.
  std::function<std::string()> details = {};
};

// Throws UsageError if the texts of two ranks differ, or if a rank does not call this within the
// time limit of the store's collectives (at most 10 minutes). All ranks call it in the same order.
// Does nothing for a group without a store.
void compare_over_ranks(const RankClaim& claim, const ProcessGroupPtr& group);

// Like compare_over_ranks(), but only once per text; the subject is ignored. `force`: compare even
// if this text was compared before. All ranks must make the same decision to call, or the caller
// times out.
void compare_once_over_ranks(const RankClaim& claim, const ProcessGroupPtr& group,
                             bool force = false);

// Call if this rank rejected its arguments before a comparison that other ranks will call: they
// raise an error with `reason` instead of waiting. Replaces the claim's text.
void report_error_to_ranks(const RankClaim& claim, const std::string& reason,
                           const ProcessGroupPtr& group);

// Returns torch.distributed's name of the group, equal on all of its ranks.
const std::string& get_name(const c10d::ProcessGroup& group);

// ---- announcements of reductions

// Ranks publish the reduction that they are about to run, so that a mismatch is reported instead of
// hanging silently.
//
// Uses the group's store, once per text: in all other steps the cost is a string lookup.
struct ReductionNote {
  const char* subject;     // prefix of the messages, "autocast"
  const char* group_name;  // the argument's name, "fp8_group"
  std::string text;        // "DelayedScaling with 12 amaxes"; equal on matching ranks
  bool reduces = true;     // false if this rank does not reduce; it does not wait then
  const char* hint;        // "give all ranks of the group one recipe"
};

// Call on every rank of the group, also on ranks that do not reduce. A rank that reduces waits
// until all ranks have published the same text, for at most 10 s and never longer than
// find_longest_wait(). After that, one rank warns about a rank with another text. Never throws: a
// late rank may still arrive, and the reduction has a timeout.
void announce_reduction(const ReductionNote& note, const ProcessGroupPtr& group);

}  // namespace telens
