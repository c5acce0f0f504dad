// Compares what the ranks of a group are about to do, before they wait for each other in a
// collective that would not fit.
//
// It goes by the group's store, beside its collectives: a rank that has nothing to compare is
// already on its way to the next collective, where it would take ours for that one.
#pragma once

#include <functional>
#include <string>

#include "core/distributed/process_group.h"

namespace telens {

// A sentence about this rank: "{subject}: rank 0 of {group_name} {text}, rank 1 {text}; {mend}".
struct RankClaim {
  const std::string& subject;  // a layer's name
  const char* group_name;      // the argument's, "tp_group"
  std::string text;
  const char* mend;
  // More of the sentence, made only where ranks compare: contents that differ in each call, which
  // make no text that is compared anew. Empty: there is no more.
  std::function<std::string()> details = {};
};

// Throws UsageError where the texts of two ranks differ, or where a rank does not call this within
// the time that the store's collectives have, 10 minutes at most. Ranks call it in the same order.
// A group without a store compares nothing.
void compare_over_ranks(const RankClaim& claim, const ProcessGroupPtr& group);

// The same, but once for each text, subjects aside. anew: also where the text was compared before,
// since another rank may come with another one. A rank that compares alone waits in vain, so all
// must be able to know that it is time.
void compare_once_over_ranks(const RankClaim& claim, const ProcessGroupPtr& group,
                             bool anew = false);

// This rank has refused its arguments before a comparison to which the others come: they raise an
// error that gives the reason instead of waiting for it. The claim's text is made of the reason.
void tell_refusal(const RankClaim& claim, const std::string& reason, const ProcessGroupPtr& group);

// The name by which torch.distributed tells groups apart; it is the same on all of their ranks.
const std::string& get_name(const c10d::ProcessGroup& group);

}  // namespace telens
