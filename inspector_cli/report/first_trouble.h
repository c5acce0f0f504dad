// Finds the first problem in a run that has just diverged.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/series.h"
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
  std::optional<Trouble> overflow;   // the first cast that clipped elements, excluding warm-up
  std::optional<Trouble> scalar;     // the first loss that is not finite; `where` is unused
  std::string scalar_name;
  std::int64_t also = 0;  // other tensors with non-finite elements in that same iteration
  // Number of earlier steps with non-finite gradients that a loss scaler skipped.
  std::size_t skipped_steps = 0;
  bool nonfinite_measured = false;
  bool overflow_measured = false;
  // The most severe casts of the running recipe (analysis/severity.h).
  std::optional<analysis::TensorSummary> clips_most;
  std::optional<analysis::TensorSummary> loses_most;
  // The cast with the largest overflows%, set only if no cast clips: its scale was rounded down.
  std::optional<analysis::TensorSummary> rounds_most;
};

// Finds the first problem in records, which may be added in any order.
class FirstTroubleFinder {
 public:
  FirstTroubleFinder(const record::RunReader& run, const analysis::WarmUp& warm_up);
  ~FirstTroubleFinder();
  FirstTroubleFinder(const FirstTroubleFinder&) = delete;
  FirstTroubleFinder& operator=(const FirstTroubleFinder&) = delete;

  // Returns the ids of the statistics that it requires. Other records are ignored.
  const std::vector<std::int32_t>& statistics() const;
  void add(const record::Record& record);
  // Call once, after adding all records of the query's layers, tensors, GEMMs, ranks and
  // iterations. `scalars`: from RunReader::scalars().
  FirstTrouble result(const record::RecordQuery& query, const std::vector<record::Scalar>& scalars);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Reads the run once. Passes the records of the query to `use`, and the required ones to `finder`.
void for_each_record(const record::RunReader& run, const record::RecordQuery& query,
                     FirstTroubleFinder& finder, const analysis::UseRecord& use);
// Like FirstTroubleFinder, but reads the run itself.
FirstTrouble find_first_trouble(const record::RunReader& run, const analysis::WarmUp& warm_up,
                                const record::RecordQuery& query);

// fine: measured without a problem. plain: harmless or unknown.
enum class Gravity : std::uint8_t { fine, plain, notable, grave };
struct Sentence {
  std::string text;  // printable
  Gravity gravity = Gravity::plain;
};

// Describes the trouble, most severe first. Returns at least one sentence.
std::vector<Sentence> sentences(const FirstTrouble& trouble, const analysis::WarmUp& warm_up,
                                const record::RunReader& run);
// Prints the command that diagnoses the run.
void print_pointer(const std::string& run);
void print_sentences(const std::vector<Sentence>& sentences);

}  // namespace telens::cli
