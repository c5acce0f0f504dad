#include "core/base/text.h"

#include <gtest/gtest.h>

#include <string>

namespace telens {
namespace {

TEST(Printable, normal_text_is_unchanged) {
  for (const char* text : {"", "layers.0.fc1", "C:\\temp", "Größe 大きさ 🔎 a̐"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, terminal_control_characters_become_escapes) {
  EXPECT_EQ(printable("a\x1b[2J"), "a\\x1b[2J");
  EXPECT_EQ(printable("one\ntwo\r\n\tthree"), "one\\ntwo\\r\\n\\tthree");
  EXPECT_EQ(printable(std::string("nul\0", 4)), "nul\\x00");
  EXPECT_EQ(printable("\x7f"), "\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"), "\\x9b");        // CSI as one control character
  EXPECT_EQ(printable("\u202eabc"), "\\u202eabc");  // written from right to left
  EXPECT_EQ(printable("a\u200bb"), "a\\u200bb");    // takes no room
  EXPECT_EQ(printable("\u2028\ufeff"), "\\u2028\\ufeff");
  EXPECT_EQ(printable("\U000e0041"), "\\U000e0041");  // a tag
}

TEST(Printable, invalid_utf8_becomes_escapes) {
  EXPECT_EQ(printable("\xff"), "\\xff");
  EXPECT_EQ(printable("\xc3("), "\\xc3(");
  EXPECT_EQ(printable("\xe2\x82"), "\\xe2\\x82");                    // cut
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
}

TEST(Printable, characters_forbidden_in_xml_become_escapes) {
  EXPECT_EQ(printable("\ufffe\uffff\x0b"), "\\ufffe\\uffff\\x0b");
}

TEST(Printable, lines_are_kept_and_indented) {
  EXPECT_EQ(printable_lines("a:\n\tb\x1b\n"), "a:\n\tb\\x1b\n");
  EXPECT_EQ(printable_lines("a\r\nb\rc"), "a\\r\nb\\rc");
  EXPECT_EQ(printable_lines("a\n2026 - INFO - b", "    "), "a\n    2026 - INFO - b");
}

TEST(Printable, one_column_per_character) { EXPECT_EQ(get_columns("Größe"), 5U); }

}  // namespace
}  // namespace telens
