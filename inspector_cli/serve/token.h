// The secret in the address of a page, without which the page is not shown.
#pragma once

#include <string>
#include <string_view>

namespace telens::cli {

// 128 bits from the system's source of randomness, as 32 hexadecimal digits. Throws UsageError
// where the system has none.
std::string new_token();

// True if they are equal. Takes the same time wherever they differ.
bool same_secret(std::string_view given, std::string_view secret);

}  // namespace telens::cli
