// The output of findings: text, JSON and the series that shows a finding.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "analysis/diagnosis.h"
#include "analysis/facts.h"
#include "analysis/rule.h"
#include "core/base/json.h"

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

// The version of the JSON schema, which is in docs/diagnosis.md.
inline constexpr int kSchemaVersion = 1;

// Returns one line of JSON. `run` is the path that the user passed; `notes` says why the recording
// is incomplete.
std::string diagnosis_json(const Diagnosis& diagnosis, const Facts& facts, const std::string& run,
                           const std::vector<std::string>& notes = {});

// Returns one entry of the `findings` of diagnosis_json().
Json ranked_json(const Ranked& ranked, const Facts& facts, const std::string& run);

// The series that shows a finding: a tensor's statistic and the statistic of its peers.
struct EvidenceSeries {
  std::string statistic;
  Place place;
  std::vector<Point> points = {};
  // The median over the same part of other blocks, by iteration; empty if there are none.
  std::vector<Point> peers = {};
  std::size_t peer_count = 0;
};

// Returns the first statistic of the finding's evidence that was recorded at its place in at least
// two iterations; nullopt if there is none.
std::optional<EvidenceSeries> find_evidence_series(const Finding& finding, const Facts& facts);

}  // namespace telens::analysis
