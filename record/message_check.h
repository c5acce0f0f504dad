// Checks the messages of HDF5 object headers: no message may claim more bytes than it has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>

namespace telens::record {

inline constexpr std::size_t kAddressBytes = 8;  // in files of TELens; a length has as many bytes

// Returns the unsigned number of up to 8 bytes at `begin`, or 0 if the block ends before it.
inline std::uint64_t stored_number(std::span<const char> block, std::size_t begin,
                                   std::size_t bytes) {
  std::uint64_t value = 0;
  if (begin <= block.size() && bytes <= block.size() - begin) {
    std::memcpy(&value, block.data() + begin, bytes);  // both are little-endian
  }
  return value;
}

enum class MessageKind : std::uint8_t {
  dataspace = 0x01,
  link_info = 0x02,
  datatype = 0x03,
  old_fill_value = 0x04,
  fill_value = 0x05,
  link = 0x06,
  external_files = 0x07,
  layout = 0x08,
  group_info = 0x0a,
  filters = 0x0b,
  attribute = 0x0c,
  comment = 0x0d,
  continuation = 0x10,
  attribute_info = 0x15,
};

// The flag of a shared message, in its prefix or in a B-tree record: the content is stored
// elsewhere.
inline constexpr std::uint64_t kSharedMessage = 0x02;

// Returns the reason why the content of a message must not be decoded. Returns nullopt if it may be
// decoded or if messages of this kind have no lengths. HDF5 up to 1.12 trusts the lengths in a
// message: of a fill value, a name, the members of a type, the dimensions of an array. `is_shared`
// is the flag of the message: the content is then a reference to the message.
std::optional<std::string> describe_overrun(MessageKind kind, bool is_shared,
                                            std::span<const char> content);

}  // namespace telens::record
