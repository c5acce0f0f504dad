// Text in a field of fixed width: cut at a whole UTF-8 character, padded with zeros.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace telens::record {

// A text that does not fit is cut and ends in "~", so that a reader sees that it was.
void put_text(std::string_view text, std::span<char> cell);
// The same for a name, whose "~" is followed by 16 digits that stand for all of it: names that
// begin alike stay different ones.
void put_name(std::string_view name, std::span<char> cell);
std::string get_text(std::span<const char> cell);

}  // namespace telens::record
