// Finds where two series diverge, given the difference that is expected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "analysis/compared_series.h"

namespace telens::analysis {

// A tensor whose size in run B is further from that in run A than the tolerance, from an iteration
// on, or in single ones by far; or a scalar of the program.
struct Divergence {
  Place place = {};           // in A
  std::string layer = {};     // its name in A; "": a scalar
  std::string quantity = {};  // "root mean square", "error of the cast", or the scalar's name
  // The number of series that share a factor. If it is above 1, `a` is 1 and `b` is the factor.
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

bool have_common_iteration(const Series& a, const Series& b);

// The largest distance that counts as equal in an iteration.
using Tolerance = std::function<double(std::int64_t iteration)>;

// Returns the first excess of 3 consecutive common iterations. For sizes, also an excess that lasts
// until the last one or is very large. The scale of a single cast may be off for one or two
// iterations. Sets neither place nor names.
std::optional<Divergence> find_divergence(Compared kind, const Series& a, const Series& b,
                                          const Tolerance& tolerance);

}  // namespace telens::analysis
