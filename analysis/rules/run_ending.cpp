#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

constexpr std::string_view kEndingDoc =
    "How the program ended, if it did not end cleanly. The end is a separate finding, listed last, "
    "if no other finding explains it. A run that is still being written has not ended. An unclosed "
    "file from another machine counts as being written for 5 minutes after its last change, "
    "because copies and file systems without shared locks do not show whether a process is "
    "writing.";

std::string describe_last_change(double time) {
  constexpr double kYear10000 = 253402300800;
  if (!(time > 0 && time < kYear10000)) return "";
  return fmt::format("; the file last changed {:%Y-%m-%d %H:%M:%S} UTC",
                     fmt::gmtime(static_cast<std::time_t>(time)));
}

std::vector<Finding> find(const Facts& facts, Ending ending, std::string_view what) {
  const RunEnding& end = facts.ending();
  if (end.ending != ending) return {};
  const std::int64_t iteration =
      end.iteration.value_or(std::max<std::int64_t>(0, facts.last_iteration()));
  const bool is_inferred = ending == Ending::killed;  // not recorded in the file
  std::string summary(what);
  if (is_inferred) summary += describe_last_change(end.time);
  if (!end.reason.empty()) summary += fmt::format(": {}", end.reason);
  return {{.cause = get_name(ending),
           .place = {.rank = end.rank.value_or(kAllRanks)},
           .first = iteration,
           .last = iteration,
           .confidence = is_inferred ? kProbable : kProven,
           .summary = std::move(summary)}};
}

template <Ending ending, const char* what>
Rule make_rule(std::string_view title, std::string_view alternatives, std::string_view next_step) {
  return {.cause = get_name(ending),
          .title = title,
          .doc = kEndingDoc,
          .stage = Stage::ending,
          .recorded_by = "every run file",
          .alternatives = alternatives,
          .next_step = next_step,
          .find = [](const Facts& facts) { return find(facts, ending, what); }};
}

constexpr char kException[] = "an exception ended the program";
constexpr char kOutOfMemory[] = "the program ran out of memory";
constexpr char kKilled[] = "the process did not close its file: it was killed or crashed";
constexpr char kTerminated[] = "SIGTERM or Ctrl-C ended the program";

}  // namespace

Rule exception() {
  return make_rule<Ending::exception, kException>(
      "program ended by an exception", "An error that the program handles outside of its session.",
      "read the traceback in the program's output; fix the error that it names");
}

Rule out_of_memory() {
  return make_rule<Ending::out_of_memory, kOutOfMemory>(
      "program that ran out of memory",
      "Another process that uses the memory of the same device or machine.",
      "use a smaller batch, te.checkpoint, or fewer recorded statistics; "
      "torch.cuda.memory_summary() shows how memory is used");
}

Rule killed() {
  return make_rule<Ending::killed, kKilled>(
      "program that was killed",
      "The kernel's OOM killer (dmesg names it), a scheduler's limit, a crash in native code, a "
      "lost machine; a run that continues elsewhere, if this is a copy of its file.",
      "look at the end of the program's output, at dmesg and at the scheduler's log; telens repair "
      "RUN");
}

Rule terminated() {
  return make_rule<Ending::terminated, kTerminated>(
      "program ended by a signal", "A launcher that ends all ranks after one of them failed.",
      "look for a time limit or a preemption in the scheduler's log");
}

}  // namespace telens::analysis
