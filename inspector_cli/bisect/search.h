// The search for the GEMMs that have to stay in high precision.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "inspector_cli/bisect/candidates.h"
#include "inspector_cli/bisect/trials.h"

namespace telens::cli {

// How far a search goes: to layers, to their GEMMs, or to the operands of these.
enum class Depth : std::uint8_t { layer, gemm, tensor };

// An entry of the result: it has to stay in high precision.
struct Needed {
  std::string layer;
  std::set<Gemm> gemms;    // one; at Depth::layer all of the layer
  int failed_without = 0;  // the run in which all other entries stayed, and this one did not
  std::string reason;      // that run's, for its failure
  // The operands whose cast alone makes the run fail.
  std::vector<TensorName> tensors = {};
  std::string about_tensors = {};  // why there are none
};

struct SearchResult {
  std::vector<Needed> needed;
  Choice choice;       // all of them
  int passed_run = 0;  // in which all of them stayed
  // Entries that turned out to be superfluous: more in high precision has made a run fail.
  std::vector<std::string> superfluous = {};
};

class Search {
 public:
  using Tell = std::function<void(const std::string& stage)>;
  Search(Trials& trials, std::vector<Candidate> candidates, Depth depth, Tell tell);

  // A run with nothing in high precision has failed, and one with all candidates has passed.
  SearchResult find();

 private:
  struct Entry {
    std::size_t layer = 0;  // in candidates_
    std::set<Gemm> gemms;
  };
  using Entries = std::vector<Entry>;

  Choice make_choice(const Entries& entries) const;
  bool passes(const Entries& entries);
  Entries needed_layers();
  Entries needed_gemms(const Entries& layers);
  void drop_superfluous(Entries& entries, SearchResult& result);
  void find_operands(const Entries& entries, SearchResult& result);
  std::string make_label(const Entry& entry) const;

  Trials& trials_;
  std::vector<Candidate> candidates_;
  Depth depth_;
  Tell tell_;
};

}  // namespace telens::cli
