// Notices the first loss that is not finite.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace telens::debug {

class LossWatch {
 public:
  // A sentence for the user where the loss stops being finite; nullopt at all other times.
  std::optional<std::string> look_at(double loss, std::int64_t iteration);

 private:
  std::optional<std::pair<double, std::int64_t>> finite_;  // the last one, and its iteration
  bool is_finite_ = true;
};

}  // namespace telens::debug
