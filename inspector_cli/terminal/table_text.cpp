#include "inspector_cli/terminal/table_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "core/base/printable.h"
#include "inspector_cli/terminal/layer_labels.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {
namespace {

constexpr std::string_view kGap = "  ";
constexpr std::string_view kLayer = "layer";
// Texts are not wrapped to less, nor columns left out while there are no more.
constexpr std::size_t kLeastWidth = 8;
constexpr std::size_t kLeastColumns = 3;
// A layer's name of more lines than that is cut in its middle, and so is a word of more than half a
// line that is longer than those of English and of code.
constexpr std::size_t kMostLines = 2;
constexpr std::size_t kLongestWord = 24;
// A reader sees at a glance what fewer rows have in common.
constexpr std::size_t kLeastRows = 3;

using Lines = std::vector<std::string>;

// Behind these a line may end.
constexpr std::string_view kBreaks = " ./_,";

struct Column {
  std::string name;
  Lines cells;
  bool numbers = false;
  std::size_t width = 0;

  bool is_empty() const { return is_all(""); }
  bool is_all(std::string_view text) const {
    return std::ranges::all_of(cells, [&](const std::string& cell) { return cell == text; });
  }
};

std::size_t widest(const Lines& lines) {
  std::size_t width = 0;
  for (const std::string& line : lines) width = std::max(width, get_columns(line));
  return width;
}

// The width of a column whose cells are wrapped to `most`. Numbers are never wrapped; a heading
// is, between its words.
std::size_t width_at_most(const Column& column, std::size_t most) {
  std::size_t width = widest(wrapped(column.name, most));
  for (const std::string& cell : column.cells) {
    width = std::max(width, column.numbers ? get_columns(cell) : widest(wrapped(cell, most)));
  }
  return width;
}

std::size_t sum_total(const std::vector<Column>& columns) {
  std::size_t total = columns.empty() ? 0 : kGap.size() * (columns.size() - 1);
  for (const Column& column : columns) total += column.width;
  return total;
}

std::vector<Column> columns_from(const std::vector<std::string>& names,
                                 const std::vector<std::vector<Cell>>& rows) {
  std::vector<Column> columns;
  for (std::size_t i = 0; i < names.size(); ++i) {
    Column column{names[i], {}};
    for (const auto& row : rows) {
      column.cells.push_back(short_text(row[i]));
      column.numbers = column.numbers || is_number(row[i]);
    }
    column.width = std::max(get_columns(column.name), widest(column.cells));
    columns.push_back(std::move(column));
  }
  return columns;
}

std::string padded(const std::string& text, std::size_t width, bool right) {
  const std::string space(width - std::min(width, get_columns(text)), ' ');
  return right ? space + text : text + space;
}

// A row of the table: as many lines as its highest cell has.
template <typename TextOf>
std::string row_text(const std::vector<Column>& columns, const TextOf& to_text) {
  std::vector<Lines> cells;
  std::size_t height = 1;
  for (const Column& column : columns) {
    const std::string text = to_text(column);
    const bool fits = get_columns(text) <= column.width;
    cells.push_back(fits ? Lines{text} : wrapped(text, column.width));
    height = std::max(height, cells.back().size());
  }
  std::vector<std::string> lines(height);
  for (std::size_t line = 0; line < height; ++line) {
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const std::string text = line < cells[i].size() ? cells[i][line] : "";
      if (i > 0) lines[line] += kGap;
      lines[line] += padded(text, columns[i].width, columns[i].numbers);
    }
    lines[line].erase(lines[line].find_last_not_of(' ') + 1);
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

// The measures that fit a table into a width, and the notes that tell the reader about them.
struct Fitted {
  Lines above;
  std::vector<std::string> left_out;
  bool is_cut = false;
};

// The text without words that no line of that width could hold beside others.
std::string cut_words(const std::string& text, std::size_t width) {
  const std::size_t longest_word = std::max(width / 2, kLongestWord);
  std::string words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(kBreaks, at), text.size() - 1) + 1;
    words += cut_in_the_middle(std::string_view(text).substr(at, end - at), longest_word);
    at = end;
  }
  return words;
}

std::string cut_name(const std::string& name, std::size_t width) {
  return cut_in_the_middle(cut_words(name, width), kMostLines * width);
}

bool cut_texts(std::vector<Column>& columns, std::size_t width) {
  bool is_cut = false;
  for (Column& column : columns) {
    if (column.numbers || column.width <= width / 2) continue;
    for (std::string& cell : column.cells) {
      std::string cut = column.name == kLayer ? cut_name(cell, width) : cut_words(cell, width);
      is_cut = is_cut || cut != cell;
      cell = std::move(cut);
    }
    column.width = std::max(get_columns(column.name), widest(column.cells));
  }
  return is_cut;
}

std::string strip_layers(std::vector<Column>& columns) {
  const auto layer =
      std::ranges::find_if(columns, [](const Column& each) { return each.name == kLayer; });
  if (layer == columns.end()) return "";
  const CommonParts common = common_parts(layer->cells);
  if (!common.any()) return "";
  for (std::string& cell : layer->cells) cell = common.without(cell);
  layer->width = std::max(get_columns(layer->name), widest(layer->cells));
  return common.sentence();
}

// The text that each row of the column has, or the name of another column with the same texts;
// "": neither.
std::string in_one_word(const std::vector<Column>& columns, const Column& column) {
  for (const Column& other : columns) {
    const bool is_other = &other != &column && !column.numbers;
    if (is_other && other.cells == column.cells) return fmt::format("as {}", other.name);
  }
  return column.is_all(column.cells.front()) ? column.cells.front() : "";
}

// Columns that say the same in all rows, the widest first, until the rest fits.
std::string tell_once(std::vector<Column>& columns, std::size_t width) {
  Lines told;
  while (sum_total(columns) > width && columns.size() > kLeastColumns) {
    auto widest = columns.end();
    for (auto column = columns.begin(); column != columns.end(); ++column) {
      if (in_one_word(columns, *column).empty()) continue;
      if (widest == columns.end() || column->width > widest->width) widest = column;
    }
    if (widest == columns.end()) break;
    const std::string text = in_one_word(columns, *widest);
    told.push_back(
        fmt::format("{}: {}", widest->name,
                    widest->name == kLayer ? cut_name(text, width) : cut_words(text, width)));
    columns.erase(widest);
  }
  return told.empty() ? "" : fmt::format("in all rows {}", fmt::join(told, "; "));
}

// The widest column becomes narrower, again and again.
void wrap(std::vector<Column>& columns, std::size_t width) {
  std::vector<bool> is_done(columns.size(), false);
  while (sum_total(columns) > width) {
    std::size_t found = columns.size();
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (is_done[i] || columns[i].width <= kLeastWidth) continue;
      if (found == columns.size() || columns[i].width > columns[found].width) found = i;
    }
    if (found == columns.size()) return;
    const std::size_t narrower = width_at_most(columns[found], columns[found].width - 1);
    if (narrower >= columns[found].width) {
      is_done[found] = true;
    } else {
      columns[found].width = narrower;
    }
  }
}

std::vector<Column>::iterator next_to_go(std::vector<Column>& columns,
                                         const std::vector<std::string>& expendable) {
  for (const std::string& name : expendable) {
    const auto found = std::ranges::find(columns, name, &Column::name);
    if (found != columns.end()) return found;
  }
  return std::prev(columns.end());
}

Fitted fit(std::vector<Column>& columns, const std::vector<std::string>& expendable,
           std::size_t width) {
  Fitted fitted;
  std::erase_if(columns, [](const Column& column) { return column.is_empty(); });
  if (sum_total(columns) > width) {
    const std::string layers = strip_layers(columns);
    if (!layers.empty()) fitted.above.push_back(cut_name(layers, width));
  }
  if (!columns.empty() && columns.front().cells.size() >= kLeastRows) {
    std::ranges::move(wrapped(tell_once(columns, width), width), std::back_inserter(fitted.above));
    std::erase(fitted.above, "");
  }
  fitted.is_cut = cut_texts(columns, width);
  std::vector<Column> kept = columns;
  for (wrap(columns, width); sum_total(columns) > width && kept.size() > kLeastColumns;
       wrap(columns, width)) {
    const auto out = next_to_go(kept, expendable);
    fitted.left_out.push_back(out->name);
    kept.erase(out);
    columns = kept;
  }
  return fitted;
}

}  // namespace

std::vector<std::string> wrapped(const std::string& text, std::size_t width) {
  Lines lines(1);
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = text.find_first_of(kBreaks, at);
    end = end == std::string::npos ? text.size() : end + 1;
    const std::string piece = text.substr(at, end - at);
    std::string bare = piece;
    if (bare.ends_with(' ')) bare.pop_back();
    if (!lines.back().empty() && get_columns(lines.back()) + get_columns(bare) > width) {
      lines.emplace_back();
    }
    lines.back() += piece;
    at = end;
  }
  for (std::string& line : lines) line.erase(line.find_last_not_of(' ') + 1);
  return lines;
}

std::string table_text(const TableContent& content, std::size_t width) {
  const auto& rows = content.rows;
  std::vector<Column> columns = columns_from(content.columns, rows);
  Fitted fitted;
  if (width > 0 && !rows.empty()) fitted = fit(columns, content.expendable, width);
  std::string out;
  for (const std::string& line : fitted.above) out += coloured(line, Colour::dim) + "\n";
  const std::string heading = row_text(columns, [](const Column& each) { return each.name; });
  for (std::size_t at = 0; at < heading.size();) {  // color does not go over the end of a line
    const std::size_t end = std::min(heading.find('\n', at), heading.size());
    out += coloured(heading.substr(at, end - at), Colour::bold) + "\n";
    at = end + 1;
  }
  for (std::size_t row = 0; row < rows.size(); ++row) {
    out += row_text(columns, [row](const Column& each) { return each.cells[row]; }) + "\n";
  }
  if (!fitted.left_out.empty()) {
    out += coloured(fmt::format("left out, for want of room: {} (--format csv has all)",
                                fmt::join(fitted.left_out, ", ")),
                    Colour::dim) +
           "\n";
  }
  if (fitted.is_cut) {
    out +=
        coloured("~ stands for the middle of a long name (--format csv has it whole)", Colour::dim);
    out += "\n";
  }
  return out;
}

std::vector<std::string> wrapped_at_blanks(const std::string& text, std::size_t width) {
  std::vector<std::string> lines(1);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    std::string& line = lines.back();
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      lines.emplace_back(word);
    } else {
      line += (line.empty() ? "" : " ") + word;
    }
    begin = end + 1;
  }
  std::vector<std::string> fitting;
  for (const std::string& line : lines)
    std::ranges::move(wrapped(line, width), std::back_inserter(fitting));
  return fitting;
}

}  // namespace telens::cli
