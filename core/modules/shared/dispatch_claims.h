// The ranks of an ep_group publish what they are about to send, so that mismatches are found.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>

namespace telens {

// Everything that decides which messages follow the counts of rows, and their sizes.
inline constexpr std::int64_t kDispatchClaims = 4;
using DispatchClaims = std::array<std::int64_t, kDispatchClaims>;

// hidden: [tokens, hidden]. probs: those that travel with the rows.
DispatchClaims dispatch_claims(const at::Tensor& hidden, const std::optional<at::Tensor>& probs);

// claims: int64 [ranks, kDispatchClaims] on the host. Throws UsageError if ranks differ. The
// message names the first field that differs, and two ranks with their values.
void check_dispatch_claims(const char* subject, const at::Tensor& claims);

}  // namespace telens
