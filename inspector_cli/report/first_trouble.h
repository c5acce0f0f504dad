// Finds the first problem in a run that has just diverged.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/records.h"
#include "analysis/tensor_summary.h"
#include "record/run_reader.h"

namespace telens::cli {

struct Trouble {
  analysis::SeriesKey where;
  std::int64_t iteration = 0;
  double value = 0;
};

struct FirstTrouble {
  std::optional<Trouble> nonfinite;  // the first tensor with an element that is not finite
  std::optional<Trouble> overflow;   // the first cast that clipped elements, warm-up aside
  std::optional<Trouble> scalar;     // the first loss that is not finite; `where` names nothing
  std::string scalar_name;
  std::int64_t also = 0;  // other tensors with non-finite elements in that same iteration
  // Iterations before it in which gradients were not finite, and a loss scaler skipped the step.
  std::size_t skipped_steps = 0;
  bool nonfinite_measured = false;
  bool overflow_measured = false;
  std::optional<analysis::TensorSummary> clips_most;  // casts of the running recipe, by severity.h
  std::optional<analysis::TensorSummary> loses_most;
  // The cast with the most elements beyond the largest value, without any clipped one: its scale
  // was rounded. Set only if nothing clips.
  std::optional<analysis::TensorSummary> rounds_most;
};

// Finds the first problem in records, which may be added in any order.
class FirstTroubleFinder {
 public:
  FirstTroubleFinder(const record::RunReader& run, const analysis::WarmUp& warm_up);
  ~FirstTroubleFinder();
  FirstTroubleFinder(const FirstTroubleFinder&) = delete;
  FirstTroubleFinder& operator=(const FirstTroubleFinder&) = delete;

  // Ids of the statistics that it needs; it ignores records of other ones.
  const std::vector<std::int32_t>& statistics() const;
  void add(const record::Record& record);
  // Call once, when all records of the query's layers, tensors, GEMMs, ranks and iterations are in.
  // `scalars`: the run's, as RunReader::scalars returns them.
  FirstTrouble result(const record::RecordQuery& query, const std::vector<record::Scalar>& scalars);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Reads the run once: `use` gets the records of the query, `finder` those that it needs.
void for_each_record(const record::RunReader& run, const record::RecordQuery& query,
                     FirstTroubleFinder& finder, const analysis::UseRecord& use);
// For a caller that needs no other records.
FirstTrouble find_first_trouble(const record::RunReader& run, const analysis::WarmUp& warm_up,
                                const record::RecordQuery& query);

// fine: measured, and there is nothing. plain: nothing to worry about, or not known.
enum class Gravity : std::uint8_t { fine, plain, notable, grave };
struct Sentence {
  std::string text;  // printable
  Gravity gravity = Gravity::plain;
};

// It in words, the gravest first; always at least one sentence.
std::vector<Sentence> sentences(const FirstTrouble& trouble, const analysis::WarmUp& warm_up,
                                const record::RunReader& run);
// The line that says which command judges a run.
void print_pointer(const std::string& run);
void print_sentences(const std::vector<Sentence>& sentences);

}  // namespace telens::cli
