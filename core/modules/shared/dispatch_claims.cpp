#include "core/modules/shared/dispatch_claims.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <string>

#include "core/base/error.h"
#include "core/modules/shared/autograd_utils.h"

namespace telens {
namespace {

constexpr std::int64_t kNone = -1;
enum Gradient : std::uint8_t { of_hidden = 1, of_probs = 2 };

std::int64_t dtype_code(const std::optional<at::Tensor>& x) {
  return x ? static_cast<std::int64_t>(x->scalar_type()) : kNone;
}

std::string number(std::int64_t value) { return std::to_string(value); }

std::string dtype(std::int64_t code) {
  return code == kNone ? "none" : c10::toString(static_cast<at::ScalarType>(code));
}

std::string gradients(std::int64_t wanted) {
  if (wanted == 0) return "none";
  if (wanted == of_hidden) return "of hidden";
  return wanted == of_probs ? "of probs" : "of hidden and of probs";
}

struct Field {
  const char* name;
  std::string (*shown)(std::int64_t);
};
constexpr std::array<Field, kDispatchClaims> kFields{{{"the width of hidden", number},
                                                      {"the dtype of hidden", dtype},
                                                      {"the dtype of probs that travel", dtype},
                                                      {"gradients", gradients}}};

}  // namespace

DispatchClaims dispatch_claims(const at::Tensor& hidden, const std::optional<at::Tensor>& probs) {
  return {
      hidden.size(1), dtype_code(hidden), dtype_code(probs),
      (wants_gradient(hidden) ? of_hidden : 0) + (probs && wants_gradient(*probs) ? of_probs : 0)};
}

void check_dispatch_claims(const char* subject, const at::Tensor& claims) {
  const auto value = claims.accessor<std::int64_t, 2>();
  for (std::int64_t rank = 1; rank < claims.size(0); ++rank) {
    for (std::int64_t field = 0; field < kDispatchClaims; ++field) {
      if (value[rank][field] == value[0][field]) continue;
      const auto& [name, shown] = kFields[static_cast<std::size_t>(field)];
      raise<UsageError>(
          "{}: ranks of ep_group would send each other rows that do not fit: {}: {} on rank 0, {} "
          "on rank {}; give all of its ranks the same arguments, under the same autocast",
          subject, name, shown(value[0][field]), shown(value[rank][field]), rank);
    }
  }
}

}  // namespace telens
