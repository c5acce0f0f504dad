#include "inspector_cli/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "inspector_cli/terminal.h"

namespace telens::cli {
namespace {

std::string exact(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return fmt::format("{}", value);
}

std::string short_text(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* count = std::get_if<std::int64_t>(&cell)) return fmt::format("{}", *count);
  if (const auto* value = std::get_if<double>(&cell)) {
    return std::isnan(*value) ? "nan" : fmt::format("{:.4g}", *value);  // of either sign
  }
  return "";
}

std::string csv_text(const Cell& cell) {
  if (const auto* value = std::get_if<double>(&cell)) return exact(*value);
  std::string text = short_text(cell);
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string json_value(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell)) return json_text(*text);
  if (const auto* value = std::get_if<double>(&cell)) return json_number(*value);
  const std::string text = short_text(cell);
  return text.empty() ? "null" : text;
}

bool is_number(const Cell& cell) {
  return std::holds_alternative<std::int64_t>(cell) || std::holds_alternative<double>(cell);
}

// Columns of a terminal that UTF-8 text takes, one for each character.
std::size_t width_of(std::string_view text) {
  return std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

std::string padded(const std::string& text, std::size_t width, bool right) {
  const std::string space(width - std::min(width, width_of(text)), ' ');
  return right ? space + text : text + space;
}

}  // namespace

std::string json_text(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (byte < 0x20 || c == '<') {  // '<': no "</script>" inside a page
      quoted += fmt::format("\\u{:04x}", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string json_number(double value) {
  return std::isfinite(value) ? exact(value) : json_text(exact(value));
}

std::string Table::render(Format format) const {
  switch (format) {
    case Format::csv:
      return as_csv();
    case Format::json:
      return as_json();
    case Format::table:
      break;
  }
  return as_text();
}

std::string Table::as_text() const {
  std::vector<std::size_t> widths;
  std::vector<bool> right(columns_.size(), false);
  for (const auto& column : columns_) widths.push_back(width_of(column));
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], width_of(short_text(row[i])));
      if (is_number(row[i])) right[i] = true;
    }
  }
  const auto line = [&](auto text_of) {
    std::string text;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      text += padded(text_of(i), widths[i], right[i]) + (i + 1 < columns_.size() ? "  " : "");
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  };
  std::string out = coloured(line([&](std::size_t i) { return columns_[i]; }), Colour::bold) + "\n";
  for (const auto& row : rows_) {
    out += line([&](std::size_t i) { return short_text(row[i]); }) + "\n";
  }
  return out;
}

std::string Table::as_csv() const {
  std::string out;
  const auto end_cell = [&](std::size_t i) { out += i + 1 < columns_.size() ? ',' : '\n'; };
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    out += csv_text(columns_[i]);
    end_cell(i);
  }
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      out += csv_text(row[i]);
      end_cell(i);
    }
  }
  return out;
}

std::string Table::as_json() const {
  std::string out = "[";
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    out += r > 0 ? ",\n {" : "\n {";
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (i > 0) out += ", ";
      out += json_text(columns_[i]);
      out += ": ";
      out += json_value(rows_[r][i]);
    }
    out += "}";
  }
  return out + "\n]\n";
}

}  // namespace telens::cli
