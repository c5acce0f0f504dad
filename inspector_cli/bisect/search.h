// The search for a minimal set of GEMMs that need high precision.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "inspector_cli/bisect/choice.h"
#include "inspector_cli/bisect/trials.h"

namespace telens::cli {

// Runs a test with the items of these indices and returns whether it passes.
using PassesWith = std::function<bool(const std::vector<std::size_t>& items)>;

// Returns the indices of a minimal passing set of `count` items. Requires that all items pass, that
// the empty set fails and that adding items never makes a passing set fail. The first two are not
// run.
//
// The shortest prefix of the list that passes together with the known needed items ends in a needed
// item. Binary search with cuts at 11/20 finds it; the search then continues before that item.
// Finding c of n items takes at most c (d + 1) runs: d cuts (9 for 200 items) and one run that
// tests whether the items found so far suffice.
std::vector<std::size_t> minimal_set(std::size_t count, const PassesWith& passes);

// The granularity of the result: layers, their GEMMs, or the operands of the GEMMs.
enum class Depth : std::uint8_t { layer, gemm, tensor };

// An entry of the result: GEMMs that need high precision.
struct Needed {
  std::string layer;
  std::set<Gemm> gemms;    // one GEMM; at Depth::layer all GEMMs of the layer
  int failed_without = 0;  // the run with all entries except this one
  std::string reason;      // why that run failed
  // The operands that make the run fail if only they are cast.
  std::vector<TensorName> tensors = {};
  std::string about_tensors = {};  // why `tensors` is empty
};

struct SearchResult {
  std::vector<Needed> needed;
  Choice choice;       // all entries in high precision
  int passed_run = 0;  // the run of `choice`
  // Entries that were not needed. They occur if adding GEMMs in high precision made a run fail.
  std::vector<std::string> superfluous = {};
};

class Search {
 public:
  using ReportStage = std::function<void(const std::string& stage)>;
  Search(Trials& trials, std::vector<Candidate> candidates, Depth depth, ReportStage report_stage);

  // Requires that a run with nothing in high precision failed and that a run with all candidates in
  // high precision passed.
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
  ReportStage report_stage_;
};

}  // namespace telens::cli
