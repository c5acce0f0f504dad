// The series by which two runs are compared, and the iteration in which a pair of them diverges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
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

// Returns the statistics from which quantities are computed.
std::vector<std::string_view> compared_statistics();

// A series of two runs whose difference exceeds the tolerance: from an iteration on, or by far in
// single iterations. The series belongs to a tensor, or is a scalar of the program.
struct Divergence {
  Place place = {};           // in A
  std::string layer = {};     // its name in A; "": a scalar
  std::string quantity = {};  // "root mean square", "error of the cast", or the scalar's name
  // The number of series with a common factor. If it is above 1, `a` is 1 and `b` is the factor.
  std::size_t series = 1;
  std::int64_t first = 0;  // iteration
  // Last iteration before the runs agree again; nullopt if they do not.
  std::optional<std::int64_t> last = {};
  double a = 0, b = 0;    // in that iteration
  double difference = 0;  // relative; infinite if one is NaN
  double tolerance = 0;
};

// Returns |a - b|, relative to the larger size; errors are relative already. Infinite if only one
// value is finite.
double get_distance(Compared kind, double a, double b);

// Converts the distance of two sizes to |log2(a / b)| and back.
double to_bits(double distance);
double from_bits(double bits);

// Returns 3 times the largest distance of a third run from A until shortly after the iteration.
double chance_by_run(Compared kind, const Series& a, const Series& third, std::int64_t iteration);

// Returns 4 times the median distance of neighboring points.
double chance_by_steps(Compared kind, const Series& a);

// Returns true if both series have a point in the same iteration.
bool have_common_iteration(const Series& a, const Series& b);

// The largest distance that counts as equal in an iteration.
using Tolerance = std::function<double(std::int64_t iteration)>;

// Returns the first excess of 3 consecutive common iterations. For sizes, also an excess that lasts
// until the last one or is very large. The scale of a single cast may be off for one or two
// iterations. Does not set place, layer and quantity.
std::optional<Divergence> find_divergence(Compared kind, const Series& a, const Series& b,
                                          const Tolerance& tolerance);

}  // namespace telens::analysis
