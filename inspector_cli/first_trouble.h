// What went wrong first: the question of someone whose run has just diverged.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "features/record/run_reader.h"
#include "inspector_cli/series.h"

namespace telens::cli {

struct Trouble {
  SeriesKey where;
  std::int64_t iteration = 0;
  double value = 0;
};

struct FirstTrouble {
  std::optional<Trouble> nonfinite;  // the first tensor with an element that is not finite
  std::optional<Trouble> overflow;   // the first cast that clipped elements
  std::optional<Trouble> scalar;     // the first loss that is not finite; `where` names nothing
  std::string scalar_name;
  std::int64_t also = 0;  // other tensors with non-finite elements in that same iteration
};

// Within the layers, tensors, GEMMs, ranks and iterations of the query.
FirstTrouble find_first_trouble(const record::RunReader& run, record::RecordQuery query);

// It in words, the gravest first; always at least one sentence.
std::vector<std::string> sentences(const FirstTrouble& trouble, const record::RunReader& run);
void print_first_trouble(const record::RunReader& run, const record::RecordQuery& query);

}  // namespace telens::cli
