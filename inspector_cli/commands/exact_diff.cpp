#include "inspector_cli/commands/exact_diff.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "analysis/exact_difference.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "inspector_cli/report/open_run.h"
#include "inspector_cli/terminal/text.h"

namespace telens::cli {
namespace {

using analysis::Culprit;
using analysis::ExactDifference;
using analysis::ExactPlace;

constexpr int kExactSchema = 1;

std::string_view get_word(Culprit culprit) {
  switch (culprit) {
    case Culprit::initialization:
      return "initialization";
    case Culprit::optimizer:
      return "optimizer";
    case Culprit::data:
      return "data";
    case Culprit::forward:
      return "forward";
    case Culprit::loss:
      return "loss";
    case Culprit::backward:
      return "backward";
    case Culprit::between:
      return "between";
  }
  return "between";
}

std::string explain(const ExactDifference& difference) {
  const ExactPlace& first = *difference.first;
  const std::string inputs = fmt::format("{}", fmt::join(difference.equal_inputs, " and "));
  switch (difference.culprit) {
    case Culprit::initialization:
      return "The weight differs from the first compared iteration on: look at its initialization "
             "and at the checkpoint.";
    case Culprit::optimizer:
      return fmt::format(
          "All tensors compared before are equal, up to iteration {}: an optimizer step or other "
          "code changed the weight differently between iterations {} and {}.",
          *difference.iteration_before, *difference.iteration_before, first.iteration);
    case Culprit::data:
      return "The weights compared before are equal: the data differ, or the code that prepares "
             "them.";
    case Culprit::forward:
      return fmt::format("Inputs equal, output differs: {} computes another result from equal {}.",
                         first.layer, inputs);
    case Culprit::loss:
      return "All tensors compared in the forward pass are equal: the loss or its targets differ.";
    case Culprit::backward:
      return fmt::format(
          "Inputs equal, result differs: the backward pass of {} computes another {} "
          "from equal {}.",
          first.layer, telens::get_name(first.tensor), inputs);
    case Culprit::between:
      break;
  }
  return difference.before.empty()
             ? "No recorded tensor comes before it."
             : fmt::format(
                   "The recorded tensor before it, {}, is equal: operations between both differ.",
                   difference.before);
}

void print_text(const ExactDifference& difference) {
  if (!difference.first) {
    fmt::print("no tensor differs ({} digests compared)\n", difference.compared);
  } else {
    const ExactPlace& first = *difference.first;
    const std::size_t ranks = difference.ranks - 1;
    const std::string others =
        ranks > 0 ? fmt::format(" and {} other rank{}", ranks, ranks == 1 ? "" : "s") : "";
    const std::string head = fmt::format(
        "The first tensor whose bits differ is {} {}, in iteration {}, micro-batch {}, rank {}{}.",
        first.layer, telens::get_name(first.tensor), first.iteration, first.micro_batch, first.rank,
        others);
    fmt::print("{}\n{}\n", printable(head), printable(explain(difference)));
    fmt::print("{} of {} digests differ.\n", difference.different, difference.compared);
  }
  if (difference.only_in_one > 0) {
    fmt::print("{} digests are in one run only and were not compared.\n", difference.only_in_one);
  }
}

void print_json(const ExactDifference& difference, const std::string& a, const std::string& b) {
  Json object;
  object["schema_version"] = kExactSchema;
  object["a"] = json_text(a);
  object["b"] = json_text(b);
  object["compared"] = difference.compared;
  object["different"] = difference.different;
  object["only_in_one"] = difference.only_in_one;
  object["first"] = Json();
  if (difference.first) {
    const ExactPlace& first = *difference.first;
    Json place;
    place["iteration"] = first.iteration;
    place["micro_batch"] = first.micro_batch;
    place["rank"] = first.rank;
    place["ranks"] = difference.ranks;
    place["layer"] = json_text(first.layer);
    place["tensor"] = telens::get_name(first.tensor);
    place["culprit"] = get_word(difference.culprit);
    place["equal_inputs"] = Json::array();
    for (const std::string& input : difference.equal_inputs) {
      place["equal_inputs"].push_back(json_text(input));
    }
    place["before"] = difference.before.empty() ? Json() : json_text(difference.before);
    place["summary"] = json_text(explain(difference));
    object["first"] = std::move(place);
  }
  fmt::print("{}\n", json_line(object));
}

}  // namespace

bool report_exact_difference(const std::string& a, const std::string& b,
                             const analysis::LayerMap& map, bool as_json) {
  const record::RunReader run_a = open_run(a);
  const record::RunReader run_b = open_run(b);
  const ExactDifference difference = analysis::find_exact_difference(
      analysis::read_digests(run_a), analysis::read_digests(run_b), map);
  if (difference.compared == 0) {
    raise<UsageError>(
        "{} and {} have no digest in common: record both with configs/exact_digests.yaml "
        "(TensorDigests), for the same layers, iterations and ranks; --map FROM=TO maps layer "
        "names",
        a, b);
  }
  if (as_json) {
    print_json(difference, a, b);
  } else {
    print_text(difference);
  }
  return difference.first.has_value();
}

}  // namespace telens::cli
