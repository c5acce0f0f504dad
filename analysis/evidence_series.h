// The series that shows a finding: a tensor's statistic next to that of its peers.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "analysis/diagnosis_finding.h"
#include "analysis/facts.h"

namespace telens::analysis {

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
