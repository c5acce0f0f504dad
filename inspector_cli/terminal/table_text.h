// A table as aligned text.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "inspector_cli/terminal/table.h"

namespace telens::cli {

struct TableContent {
  const std::vector<std::string>& columns;
  const std::vector<std::vector<Cell>>& rows;
  const std::vector<std::string>& expendable;  // columns that go first, in this order
};

// With a width other than 0 no line is wider, as far as words allow: columns without anything go
// first, then what the names of layers have in common and columns that say the same in all rows
// (both stand once above), then texts are wrapped, then columns are left out, which is told below.
std::string table_text(const TableContent& content, std::size_t width);

// Pieces of printable text of at most `width` columns, as far as its words allow.
std::vector<std::string> wrapped(const std::string& text, std::size_t width);
// The same, of whole words: what stands between blanks, as a path, is not broken where it fits.
std::vector<std::string> wrapped_at_blanks(const std::string& text, std::size_t width);

}  // namespace telens::cli
