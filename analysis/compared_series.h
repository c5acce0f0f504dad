// The series by which two runs are compared.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "analysis/facts.h"

namespace telens::analysis {

enum class Compared : std::uint8_t {
  size,           // a tensor's root mean square; cur_amax if nothing else was recorded
  cast_error,     // sqrt(mse) over the root mean square: of a cast, for a GEMM
  product_error,  // gemm_relative_error: of a GEMM
  share           // a scalar of the program in percent; only its absolute difference counts
};

struct Quantity {
  Compared kind = Compared::size;
  std::string_view name;  // in messages
  Series series;
};

std::vector<Quantity> list_quantities(const Facts& facts);

// Returns zero cast errors for each tensor of `sizes` and each of its GEMMs, for a run that
// recorded no cast, such as a run in high precision. The other run's errors are compared with them.
std::vector<Quantity> errors_of_no_cast(const std::vector<Quantity>& sizes);

// The statistics that quantities are made of.
std::vector<std::string_view> compared_statistics();

}  // namespace telens::analysis
