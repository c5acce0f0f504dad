#include "record/text_cell.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/fnv1a.h"

namespace telens::record {
namespace {

constexpr std::string_view kCut = "~";

bool continues_a_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

// As much of a text as leaves room for what stands for the rest of it.
void put_cut(std::string_view text, std::string_view rest, std::span<char> cell) {
  std::ranges::fill(cell, '\0');
  std::size_t kept = std::min(text.size(), cell.size() - rest.size());
  while (kept > 0 && kept < text.size() && continues_a_character(text[kept])) --kept;
  const auto end = std::ranges::copy(text.substr(0, kept), cell.begin()).out;
  std::ranges::copy(rest, end);
}

void put_whole(std::string_view text, std::span<char> cell) {
  std::ranges::fill(cell, '\0');
  std::ranges::copy(text, cell.begin());
}

}  // namespace

void put_text(std::string_view text, std::span<char> cell) {
  if (text.size() <= cell.size()) return put_whole(text, cell);
  put_cut(text, kCut, cell);
}

void put_name(std::string_view name, std::span<char> cell) {
  const std::string_view readable = name.substr(0, name.find('\0'));  // where a reader would stop
  if (readable.size() == name.size() && name.size() <= cell.size()) return put_whole(name, cell);
  put_cut(readable, fmt::format("{}{:016x}", kCut, fnv1a(name)), cell);
}

std::string get_text(std::span<const char> cell) {
  return {cell.begin(), std::ranges::find(cell, '\0')};
}

}  // namespace telens::record
