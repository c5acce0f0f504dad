// Lengths in messages of headers and heaps, constructed by hand from HDF5's format specification.
#include "record/metadata_check.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace telens::record {
namespace {

template <typename Number>
std::string get_bytes(Number number) {
  return {reinterpret_cast<const char*>(&number), sizeof(number)};
}

std::string zeros(std::size_t count) { return std::string(count, '\0'); }

std::string byte(unsigned value) { return get_bytes(static_cast<std::uint8_t>(value)); }
std::string two(unsigned value) { return get_bytes(static_cast<std::uint16_t>(value)); }
std::string four(unsigned value) { return get_bytes(static_cast<std::uint32_t>(value)); }

std::string type_head(unsigned kind, unsigned version, unsigned bits, unsigned bytes) {
  return four(kind | version << 4 | bits << 8) + four(bytes);
}

std::string integer() { return type_head(0, 1, 0, 8) + zeros(4); }

std::string space(unsigned dimensions, std::uint64_t extent) {
  std::string text = byte(2) + byte(dimensions) + byte(0) + byte(1);
  for (unsigned i = 0; i < dimensions; ++i) text += get_bytes(extent);
  return text;
}

std::string attribute(const std::string& name, const std::string& type, const std::string& of,
                      std::size_t data) {
  return byte(3) + byte(0) + two(static_cast<unsigned>(name.size())) +
         two(static_cast<unsigned>(type.size())) + two(static_cast<unsigned>(of.size())) + byte(0) +
         name + type + of + zeros(data);
}

std::string link(unsigned name_bytes, const std::string& name) {
  return byte(1) + byte(0) + byte(name_bytes) + name + zeros(8);
}

struct Case {
  const char* what;
  MessageKind kind;
  std::string content;  // valid; one byte less is invalid
};

std::vector<Case> whole_messages() {
  const std::string compound = type_head(6, 3, 2, 16) + "a" + zeros(1) + byte(0) + integer() + "b" +
                               zeros(1) + byte(8) + integer();
  const std::string old_compound =
      type_head(6, 1, 1, 16) + "name" + zeros(4) + four(0) + zeros(28) + integer();
  const std::string enumeration =
      type_head(8, 3, 2, 8) + integer() + "x" + zeros(1) + "yy" + zeros(1) + zeros(16);
  const std::string array = type_head(10, 3, 0, 16) + byte(1) + four(2) + integer();
  return {
      {"space", MessageKind::dataspace, space(2, 7)},
      {"old space", MessageKind::dataspace, byte(1) + byte(1) + byte(1) + zeros(5) + zeros(16)},
      {"integer", MessageKind::datatype, integer()},
      {"real", MessageKind::datatype, type_head(1, 1, 0, 8) + zeros(12)},
      {"opaque", MessageKind::datatype, type_head(5, 1, 8, 8) + "tag" + zeros(5)},
      {"compound", MessageKind::datatype, compound},
      {"old compound", MessageKind::datatype, old_compound},
      {"enumeration", MessageKind::datatype, enumeration},
      {"texts of any length", MessageKind::datatype, type_head(9, 1, 1, 16) + integer()},
      {"array", MessageKind::datatype, array},
      {"fill value", MessageKind::fill_value, byte(3) + byte(0x29) + four(3) + "abc"},
      {"second fill value", MessageKind::fill_value, byte(2) + two(0) + byte(1) + four(1) + "a"},
      {"old fill value", MessageKind::old_fill_value, four(2) + "ab"},
      {"link", MessageKind::link, link(4, "name")},
      {"soft link", MessageKind::link,
       byte(1) + byte(8) + byte(1) + byte(1) + "n" + two(4) + "path"},
      {"compact", MessageKind::layout, byte(3) + byte(0) + two(5) + "bytes"},
      {"contiguous", MessageKind::layout, byte(3) + byte(1) + zeros(16)},
      {"chunks", MessageKind::layout, byte(3) + byte(2) + byte(2) + zeros(8) + four(128) + four(8)},
      {"extensible array", MessageKind::layout,
       byte(4) + byte(2) + byte(0) + byte(2) + byte(4) + four(128) + four(8) + byte(4) + zeros(5) +
           zeros(8)},
      {"filters", MessageKind::filters,
       byte(2) + byte(2) + two(2) + two(0) + two(1) + zeros(4) + two(300) + two(5) + two(0) +
           two(0) + "name" + zeros(1)},
      {"attribute", MessageKind::attribute, attribute("n" + zeros(1), integer(), space(1, 3), 24)},
      {"comment", MessageKind::comment, "text" + zeros(1)},
  };
}

TEST(MessageCheck, rejects_messages_one_byte_too_short) {
  for (const auto& [what, kind, content] : whole_messages()) {
    EXPECT_EQ(describe_overrun(kind, false, content), std::nullopt) << what;
    EXPECT_EQ(describe_overrun(kind, false, content + "behind"), std::nullopt) << what;
    for (std::size_t bytes = 0; bytes < content.size(); ++bytes) {
      EXPECT_NE(describe_overrun(kind, false, content.substr(0, bytes)), std::nullopt)
          << what << ": " << bytes << " bytes of " << content.size();
    }
  }
}

TEST(MessageCheck, error_names_message_and_bytes) {
  EXPECT_EQ(
      describe_overrun(MessageKind::fill_value, false, byte(3) + byte(0x29) + four(4616) + "abc"),
      "fill value message: longer than its 9 bytes");
}

TEST(MessageCheck, rejects_more_than_32_dimensions) {
  EXPECT_EQ(describe_overrun(MessageKind::dataspace, false, space(32, 1)), std::nullopt);
  EXPECT_NE(describe_overrun(MessageKind::dataspace, false, space(33, 1)), std::nullopt);
  const auto array = [](unsigned dimensions) {
    return type_head(10, 3, 0, 8) + byte(dimensions) + zeros(std::size_t{4} * dimensions) +
           integer();
  };
  EXPECT_EQ(describe_overrun(MessageKind::datatype, false, array(32)), std::nullopt);
  EXPECT_NE(describe_overrun(MessageKind::datatype, false, array(33)), std::nullopt);
}

// HDF5 divides by the sizes of a chunk when it opens the dataset.
TEST(MessageCheck, rejects_chunks_of_size_0) {
  const auto old_layout = [](unsigned version, const std::string& sizes) {
    return byte(version) + byte(2) + byte(2) + zeros(5) + zeros(8) + sizes;
  };
  const auto layout_3 = [](const std::string& sizes) {
    return byte(3) + byte(2) + byte(2) + zeros(8) + sizes;
  };
  const auto layout_4 = [](unsigned bytes, const std::string& sizes) {
    return byte(4) + byte(2) + byte(0) + byte(2) + byte(bytes) + sizes + byte(4) + zeros(5) +
           zeros(8);
  };
  const auto describe = [](const std::string& content) {
    return describe_overrun(MessageKind::layout, false, content);
  };
  const std::string sizes = four(128) + four(8);
  for (const std::string& whole :
       {old_layout(1, sizes), old_layout(2, sizes), layout_3(sizes), layout_4(4, sizes)}) {
    EXPECT_EQ(describe(whole), std::nullopt);
  }
  const std::string error = "layout message: a chunk of size 0";
  for (const std::string& zero : {four(0) + four(8), four(128) + four(0)}) {
    EXPECT_EQ(describe(old_layout(1, zero)), error);
    EXPECT_EQ(describe(layout_3(zero)), error);
    EXPECT_EQ(describe(layout_4(4, zero)), error);
  }
  // HDF5 keeps the lower 32 bits of a size.
  EXPECT_EQ(describe(layout_4(8, four(0) + four(1) + four(8) + four(0))), error);
  // Sizes of 0 and of 9 bytes, and a chunk without dimensions.
  EXPECT_NE(describe(layout_4(0, sizes)), std::nullopt);
  EXPECT_NE(describe(layout_4(9, zeros(18))), std::nullopt);
  EXPECT_NE(describe(byte(3) + byte(2) + byte(1) + zeros(8) + four(8)), std::nullopt);
}

TEST(MessageCheck, rejects_deeply_nested_types) {
  std::string type = integer();
  for (int depth = 1; depth < 32; ++depth) type = type_head(9, 1, 0, 16) + type;
  EXPECT_EQ(describe_overrun(MessageKind::datatype, false, type), std::nullopt);
  EXPECT_NE(describe_overrun(MessageKind::datatype, false, type_head(9, 1, 0, 16) + type),
            std::nullopt);
}

TEST(MessageCheck, size_product_does_not_overflow) {
  const std::string name = "n" + zeros(1);
  EXPECT_NE(describe_overrun(MessageKind::attribute, false,
                             attribute(name, integer(), space(2, std::uint64_t{1} << 32), 8)),
            std::nullopt);
}

// A name without a zero would continue into the following bytes.
TEST(MessageCheck, name_must_end_within_its_field) {
  EXPECT_NE(
      describe_overrun(MessageKind::attribute, false, attribute("name", integer(), space(0, 0), 8)),
      std::nullopt);
}

TEST(MessageCheck, shared_message_is_a_reference) {
  EXPECT_EQ(describe_overrun(MessageKind::datatype, true, byte(3) + byte(2) + zeros(8)),
            std::nullopt);
  EXPECT_NE(describe_overrun(MessageKind::datatype, true, byte(3) + byte(2) + zeros(7)),
            std::nullopt);
}

TEST(MessageCheck, ignores_messages_without_lengths) {
  EXPECT_EQ(describe_overrun(static_cast<MessageKind>(0x12), false, ""), std::nullopt);
}

constexpr std::uint64_t kHeap = 4096;

std::string heap_header(unsigned identifier_bytes, unsigned bits = 32) {
  std::string block = "FRHP" + byte(0) + two(identifier_bytes) + two(0) + byte(0) + four(4096);
  block += zeros(96) + two(4) + get_bytes(std::uint64_t{512}) + get_bytes(std::uint64_t{1} << 16);
  return block + two(bits) + zeros(16);
}

std::string heap_block(const std::string& objects) {
  return "FHDB" + byte(0) + get_bytes(kHeap) + four(0) + objects;
}

std::string identifier(unsigned offset, unsigned bytes) {
  return byte(0) + four(offset) + two(bytes);
}

constexpr unsigned kFirst = 17;  // after the prefix of a block
constexpr const char* kOverrun = "block FHDB, link message: longer than its 13 bytes";

TEST(HeapCheck, checks_object_when_identifier_and_block_are_known) {
  const std::string good = link(2, "ab");
  const std::string bad = link(200, "ab");
  const auto size = static_cast<unsigned>(good.size());
  for (const bool block_comes_first : {false, true}) {
    for (const bool is_good : {true, false}) {
      HeapCheck heaps;
      EXPECT_EQ(heaps.note_heap(kHeap, MessageKind::link), std::nullopt);
      EXPECT_EQ(heaps.check_header(kHeap, heap_header(7)), std::nullopt);
      const std::string block = heap_block((is_good ? good : bad) + zeros(100));
      std::optional<std::string> first, second;
      if (block_comes_first) {
        first = heaps.check_block(block);
        second = heaps.note_object(kHeap, identifier(kFirst, size));
      } else {
        first = heaps.note_object(kHeap, identifier(kFirst, size));
        second = heaps.check_block(block);
      }
      EXPECT_EQ(first, std::nullopt);
      EXPECT_EQ(second, is_good ? std::nullopt : std::optional<std::string>(kOverrun));
    }
  }
}

TEST(HeapCheck, rejects_object_beyond_its_block) {
  HeapCheck heaps;
  heaps.note_heap(kHeap, MessageKind::link);
  heaps.check_header(kHeap, heap_header(7));
  heaps.check_block(heap_block(zeros(8)));
  EXPECT_EQ(heaps.note_object(kHeap, identifier(kFirst, 9)),
            "block FHDB: an object of 9 bytes, 8 before the end");
}

TEST(HeapCheck, rejects_wrong_identifier_size) {
  HeapCheck heaps;
  heaps.note_heap(kHeap, MessageKind::link);
  EXPECT_EQ(heaps.check_header(kHeap, heap_header(8)),
            "block FRHP, bytes of an identifier: expected 7, got 8");
  EXPECT_EQ(heaps.check_header(kHeap, heap_header(7, 64)),
            "block FRHP: an offset of 8 bytes and a length of 2 in an identifier of 7");
  EXPECT_EQ(heaps.check_header(kHeap + 1, heap_header(7)),
            "block FRHP: a heap that belongs to no object");
  EXPECT_EQ(HeapCheck().check_block(heap_block("")), "block FHDB: not a block of a heap");
}

}  // namespace
}  // namespace telens::record
