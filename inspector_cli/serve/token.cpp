#include "inspector_cli/serve/token.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/base/error.h"

namespace telens::cli {

std::string new_token() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    raise<UsageError>("cannot make a token: the system gives no random bytes: {}",
                      std::strerror(errno));
  }
  std::string token;
  for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

bool same_secret(std::string_view given, std::string_view secret) {
  // The length is no secret; beyond it nothing depends on the texts but the result.
  if (given.size() != secret.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < secret.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(secret[i]);
  }
  return *const_cast<const volatile unsigned*>(&difference) == 0;
}

}  // namespace telens::cli
