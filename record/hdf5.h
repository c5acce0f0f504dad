// HDF5's C API for the writer and the reader: handles that close themselves, one lock,
// errors as exceptions.
#pragma once

#include <hdf5.h>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "record/rows/table.h"

namespace telens::record::hdf5 {

// HDF5 is not thread-safe as Debian builds it. Every call happens while one of these lives; it also
// keeps the library from printing its errors, and puts the application's own handler back. Throws
// RecordError in a process that was forked while another thread was inside HDF5 and stayed there.
class Lock {
 public:
  Lock();
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  static std::recursive_timed_mutex& mutex();
  std::scoped_lock<std::recursive_timed_mutex> lock_;
  H5E_auto2_t handler_ = nullptr;
  void* handler_data_ = nullptr;
};

// An HDF5 identifier with the function that closes it. The holder owns a Lock when it dies.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle() = default;
  Handle(hid_t id, Close close) : id_(id), close_(close) {}
  Handle(Handle&& other) noexcept
      : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Handle() { reset(); }

  // The status of closing; negative: what was still cached did not reach the file.
  herr_t reset() {
    const hid_t id = std::exchange(id_, H5I_INVALID_HID);
    return id >= 0 ? close_(id) : 0;
  }

  operator hid_t() const { return id_; }  // NOLINT: handles stand where HDF5 wants a hid_t
  explicit operator bool() const { return id_ >= 0; }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

// The innermost cause on HDF5's error stack, such as "No space left on device".
std::string last_error();

// Why the operating system refused what HDF5 did last, which says nothing about the file's bytes;
// nothing where it did not.
std::optional<std::string> last_system_error();

// Returns true if the last error is a file that is shorter than its superblock states.
bool is_truncation_error();

// Throws RecordError "<what>: <innermost cause>" for a negative result.
void check(herr_t status, std::string_view what);
Handle checked(hid_t id, Handle::Close close, std::string_view what);

// One column of a row type: the type of a row is the list of its columns.
struct Column {
  const char* name;
  std::size_t offset;
  hid_t type;
};
Handle row_type(std::size_t row_bytes, std::span<const Column> columns);
Handle text_type(std::size_t width);  // fixed length, UTF-8, padded with zeros
std::uint64_t row_count(hid_t dataset);

// For messages: "integer", and "integer of 8 bytes".
std::string class_name(H5T_class_t type_class);
std::string description(hid_t type);

}  // namespace telens::record::hdf5

namespace telens::record {

// The HDF5 type of a table's rows, made from its columns.

template <typename Stored>
inline constexpr bool kIsText = false;
template <std::size_t width>
inline constexpr bool kIsText<std::array<char, width>> = true;

// The type of a number; text has a type of its own, made for its width.
template <typename Number>
hid_t number_type() {
  if constexpr (std::is_same_v<Number, std::int16_t>) {
    return H5T_NATIVE_INT16;
  } else if constexpr (std::is_same_v<Number, std::int32_t>) {
    return H5T_NATIVE_INT32;
  } else if constexpr (std::is_same_v<Number, std::int64_t>) {
    return H5T_NATIVE_INT64;
  } else if constexpr (std::is_same_v<Number, std::uint64_t>) {
    return H5T_NATIVE_UINT64;
  } else {
    static_assert(std::is_same_v<Number, double>, "a column of a type that has no HDF5 type yet");
    return H5T_NATIVE_DOUBLE;
  }
}

// Used under a Lock.
template <typename Row>
hdf5::Handle row_type() {
  std::vector<hdf5::Handle> texts;
  std::vector<hdf5::Column> columns;
  for_each_column<Row>([&]<typename Member, typename Stored>(
                           const Column<Row, Member, Stored>& column, std::size_t offset) {
    if constexpr (kIsText<Stored>) {
      columns.push_back({column.name, offset, texts.emplace_back(hdf5::text_type(column.kBytes))});
    } else {
      columns.push_back({column.name, offset, number_type<Stored>()});
    }
  });
  return hdf5::row_type(kStoredBytes<Row>, columns);
}

// Attributes of an HDF5 object, each a single number or text: anything else is a RecordError that
// names the attribute. An array read as a number would overwrite memory behind it.

bool has_attribute(hid_t object, const char* name);
// Within [least, most].
std::int64_t read_integer(hid_t object, const char* name, std::int64_t least, std::int64_t most);
double read_real(hid_t object, const char* name);
std::string read_text(hid_t object, const char* name);

// Text in a field of fixed width: cut at a whole UTF-8 character, padded with zeros.

// A text that does not fit is cut and ends in "~", so that a reader sees that it was.
void put_text(std::string_view text, std::span<char> cell);
// The same for a name, whose "~" is followed by 16 digits that stand for all of it: names that
// begin alike stay different ones.
void put_name(std::string_view name, std::span<char> cell);
std::string get_text(std::span<const char> cell);

}  // namespace telens::record
