// Text of a finding: its place and next steps.
#pragma once

#include <string>
#include <vector>

#include "analysis/diagnosis_finding.h"
#include "analysis/facts.h"

namespace telens::analysis {

// Returns printable text: "layers.3.fc1 activation fprop, rank 2", or "the whole run" if the place
// is empty.
std::string make_label(const Place& place, const Facts& facts);

// Returns "iteration 12" or "iterations 12 to 39".
std::string get_iterations(const Finding& finding);

// Returns the rule's next steps, with the layer and rank of this finding inserted. Each is a
// command that begins with "telens " or plain text. `run` is the path in the commands.
std::vector<std::string> next_steps(const Finding& finding, const Facts& facts,
                                    const std::string& run);
// Returns the next step as one sentence.
std::string next_step(const Finding& finding, const Facts& facts, const std::string& run);

}  // namespace telens::analysis
