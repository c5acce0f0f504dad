// Places and sizes of B-trees, in blocks constructed by hand from HDF5's format specification.
#include "record/metadata_check.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace telens::record {
namespace {

template <typename Number>
std::string get_bytes(Number number) {
  return {reinterpret_cast<const char*>(&number), sizeof(number)};
}

constexpr std::uint8_t kLinkInfo = 0x02;
constexpr std::uint8_t kContinuation = 0x10;
constexpr std::uint8_t kAttributeInfo = 0x15;
constexpr std::uint64_t kTree = 4096;
constexpr std::uint64_t kRoot = 8192;

std::string get_message(std::uint8_t kind, const std::string& content) {
  return get_bytes(kind) + get_bytes(static_cast<std::uint16_t>(content.size())) + '\0' + content;
}

constexpr std::uint64_t kHeap = 512;

std::string trees_at(std::uint8_t kind, std::uint64_t address, std::uint64_t heap = kHeap) {
  return get_message(kind, std::string(2, '\0') + get_bytes(heap) + get_bytes(address));
}

// A header without times and phases, with a size of one byte.
std::string object_header(const std::string& messages) {
  return std::string("OHDR\2\0", 6) + get_bytes(static_cast<std::uint8_t>(messages.size())) +
         messages + "sum.";
}

std::string tree_header(std::uint8_t kind, std::uint16_t levels, std::uint16_t records,
                        std::uint16_t record_bytes = 17) {
  const std::uint32_t node_bytes = 512;
  return std::string("BTHD\0", 5) + get_bytes(kind) + get_bytes(node_bytes) +
         get_bytes(record_bytes) + get_bytes(levels) + std::string(2, '\0') + get_bytes(kRoot) +
         get_bytes(records) + std::string(12, '\0');
}

TEST(MetadataCheck, accepts_tree_of_the_object_kind) {
  MetadataCheck metadata;
  EXPECT_EQ(metadata.refusal(0, object_header(trees_at(kAttributeInfo, kTree))), std::nullopt);
  EXPECT_EQ(metadata.refusal(kTree, tree_header(8, 0, 29)), std::nullopt);
  EXPECT_EQ(metadata.refusal(kTree, tree_header(8, 0, 29)), std::nullopt) << "read again";
}

TEST(MetadataCheck, rejects_tree_of_other_kind_or_no_object) {
  MetadataCheck metadata;
  metadata.refusal(0, object_header(trees_at(kAttributeInfo, kTree)));
  EXPECT_EQ(metadata.refusal(kTree, tree_header(5, 0, 1)),
            "block BTHD, kind of tree: expected 8 here, got 5");
  EXPECT_EQ(metadata.refusal(kTree + 1, tree_header(8, 0, 1)),
            "block BTHD: a tree of kind 8 that belongs to no object");
}

TEST(MetadataCheck, rejects_one_tree_for_two_uses) {
  MetadataCheck metadata;
  metadata.refusal(0, object_header(trees_at(kAttributeInfo, kTree)));
  EXPECT_EQ(metadata.refusal(64, object_header(trees_at(kLinkInfo, kTree, kHeap + 1))),
            "block OHDR: one tree of kinds 8 and 5");
  EXPECT_EQ(metadata.refusal(64, object_header(trees_at(kLinkInfo, kTree + 1))),
            "block OHDR: one heap for links and attributes");
}

TEST(MetadataCheck, ignores_bytes_after_the_header) {
  MetadataCheck metadata;
  metadata.refusal(0, object_header("") + trees_at(kAttributeInfo, kTree));
  EXPECT_EQ(metadata.refusal(kTree, tree_header(8, 0, 1)),
            "block BTHD: a tree of kind 8 that belongs to no object");
}

TEST(MetadataCheck, follows_header_continuations) {
  MetadataCheck metadata;
  const std::uint64_t next = 1024;
  const std::string part = "OCHK" + trees_at(kLinkInfo, kTree) + "sum.";
  EXPECT_EQ(metadata.refusal(next, part), "block OCHK: not a continuation of a header");
  metadata.refusal(0, object_header(get_message(kContinuation, get_bytes(next) + get_bytes(next))));
  EXPECT_EQ(metadata.refusal(next, part), std::nullopt);
  EXPECT_EQ(metadata.refusal(kTree, tree_header(5, 0, 1, 11)), std::nullopt);
}

TEST(MetadataCheck, rejects_too_many_records_in_a_root) {
  MetadataCheck metadata;
  metadata.refusal(0, object_header(trees_at(kAttributeInfo, kTree)));
  EXPECT_EQ(metadata.refusal(kTree, tree_header(8, 0, 30)),
            "block BTHD, records of the root: expected 0 to 29, got 30");
  EXPECT_EQ(metadata.refusal(kTree, tree_header(8, 1, 18)), std::nullopt);
  EXPECT_EQ(metadata.refusal(kTree, tree_header(8, 1, 19)),
            "block BTHD, records of the root: expected 0 to 18, got 19");
}

TEST(MetadataCheck, rejects_wrong_record_size) {
  MetadataCheck metadata;
  metadata.refusal(0, object_header(trees_at(kAttributeInfo, kTree)));
  EXPECT_EQ(metadata.refusal(kTree, tree_header(8, 0, 1, 1)),
            "block BTHD, bytes of a record: expected 17, got 1");
}

TEST(MetadataCheck, rejects_too_many_records_in_a_child) {
  MetadataCheck metadata;
  metadata.refusal(0, object_header(trees_at(kAttributeInfo, kTree)));
  metadata.refusal(kTree, tree_header(8, 1, 1));
  const auto node = [](std::uint8_t of_second) {
    return std::string("BTIN\0\10", 6) + std::string(17, '\0') + get_bytes(std::uint64_t{1}) +
           '\5' + get_bytes(std::uint64_t{2}) + get_bytes(of_second) + std::string(400, '\xff');
  };
  EXPECT_EQ(metadata.refusal(kRoot, node(29)), std::nullopt);
  EXPECT_EQ(metadata.refusal(kRoot, node(30)),
            "block BTIN, records of a node: expected 0 to 29, got 30");
  EXPECT_EQ(metadata.refusal(kRoot + 1, node(29)), "block BTIN: not the root of a tree");
}

TEST(MetadataCheck, rejects_leaf_without_tree_and_short_leaf) {
  MetadataCheck metadata;
  metadata.refusal(0, object_header(trees_at(kAttributeInfo, kTree)));
  metadata.refusal(kTree, tree_header(8, 0, 2));
  const std::string leaf = std::string("BTLF\0\10", 6) + std::string(17, '\0');
  EXPECT_EQ(metadata.refusal(kRoot + 1, leaf), "block BTLF: not a leaf of a tree");
  EXPECT_EQ(metadata.refusal(kRoot, leaf), "block BTLF: shorter than its records");
  EXPECT_EQ(metadata.refusal(kRoot, leaf + std::string(17, '\0')), std::nullopt);
}

// An identifier of kind 1 has the object's address in the file; one of kind 2 contains the object.
TEST(MetadataCheck, rejects_objects_outside_of_their_heap) {
  MetadataCheck metadata;
  metadata.refusal(0, object_header(trees_at(kAttributeInfo, kTree)));
  metadata.refusal(kTree, tree_header(8, 0, 1));
  const auto leaf = [](char first, char flags) {
    return std::string("BTLF\0\10", 6) + first + std::string(7, '\0') + flags +
           std::string(8, '\0');
  };
  EXPECT_EQ(metadata.refusal(kRoot, leaf('\0', '\0')), std::nullopt);
  EXPECT_EQ(metadata.refusal(kRoot, leaf('\x10', '\0')),
            "block BTLF, kind of an object: expected 0, got 1");
  EXPECT_EQ(metadata.refusal(kRoot, leaf('\x20', '\0')),
            "block BTLF, kind of an object: expected 0, got 2");
  EXPECT_EQ(metadata.refusal(kRoot, leaf('\0', '\2')), "block BTLF: a shared attribute");
}

TEST(MetadataCheck, ignores_other_and_short_blocks) {
  MetadataCheck metadata;
  for (const std::string block : {"", "O", "OHDR", "FSHD0000", "GCOL0000"}) {
    EXPECT_EQ(metadata.refusal(0, block), std::nullopt) << block;
  }
}

}  // namespace
}  // namespace telens::record
