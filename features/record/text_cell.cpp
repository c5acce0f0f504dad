#include "features/record/text_cell.h"

#include <algorithm>

namespace telens::record {
namespace {

constexpr char kCut = '~';

bool continues_a_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

}  // namespace

void put_text(std::string_view text, std::span<char> cell) {
  std::ranges::fill(cell, '\0');
  if (text.size() <= cell.size()) {
    std::ranges::copy(text, cell.begin());
    return;
  }
  std::size_t kept = cell.size() - 1;
  while (kept > 0 && continues_a_character(text[kept])) --kept;
  std::ranges::copy(text.substr(0, kept), cell.begin());
  cell[kept] = kCut;
}

std::string get_text(std::span<const char> cell) {
  return {cell.begin(), std::ranges::find(cell, '\0')};
}

}  // namespace telens::record
