// Wraps HDF5's C API: handles that close themselves, one lock, errors as exceptions, row types,
// attributes, fixed-width text.
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

// Locks HDF5, which is not thread-safe as Debian builds it. Every call requires a Lock. While one
// exists, HDF5 does not print errors; the destructor restores the application's error handler.
// Throws RecordError in a process that was forked while another thread was inside HDF5.
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

// An HDF5 identifier that closes itself. The destructor requires a Lock.
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

  // Returns the status of closing. Negative if cached data did not reach the file.
  herr_t reset() {
    const hid_t id = std::exchange(id_, H5I_INVALID_HID);
    return id >= 0 ? close_(id) : 0;
  }

  operator hid_t() const { return id_; }  // NOLINT: a handle converts to hid_t for HDF5
  explicit operator bool() const { return id_ >= 0; }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

// Returns the innermost cause on HDF5's error stack, such as "No space left on device".
std::string last_error();

// Returns the message of the operating system if the last HDF5 call failed because a system call
// did. Such a failure says nothing about the bytes of the file. Returns nullopt otherwise.
std::optional<std::string> last_system_error();

// Returns true if the last error is a file that is shorter than its superblock states.
bool is_truncation_error();

// Throws RecordError "<context>: <innermost cause>" if `status` is negative.
void check(herr_t status, std::string_view what);
Handle checked(hid_t id, Handle::Close close, std::string_view what);

// One column of a row type.
struct Column {
  const char* name;
  std::size_t offset;
  hid_t type;
};
Handle row_type(std::size_t row_bytes, std::span<const Column> columns);
Handle text_type(std::size_t width);  // fixed length, UTF-8, padded with zeros
std::uint64_t row_count(hid_t dataset);

// For messages, such as "integer" and "integer of 8 bytes".
std::string class_name(H5T_class_t type_class);
std::string description(hid_t type);

}  // namespace telens::record::hdf5

namespace telens::record {

// The HDF5 type of a table's rows.

template <typename Stored>
inline constexpr bool kIsText = false;
template <std::size_t width>
inline constexpr bool kIsText<std::array<char, width>> = true;

// Returns the type of a number. Text needs a type for its width and is handled by row_type().
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
    static_assert(std::is_same_v<Number, double>, "a column type without an HDF5 type");
    return H5T_NATIVE_DOUBLE;
  }
}

// Requires a Lock.
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

// Attributes of an HDF5 object: each must be a single number or text. The readers throw RecordError
// with the attribute's name otherwise; an array read as a number would overwrite memory.

bool has_attribute(hid_t object, const char* name);
// The value must be in [min, max].
std::int64_t read_integer(hid_t object, const char* name, std::int64_t min, std::int64_t max);
double read_real(hid_t object, const char* name);
std::string read_text(hid_t object, const char* name);

// Text in a field of fixed width, truncated at a whole UTF-8 character and padded with zeros.

// Truncated text ends in "~".
void put_text(std::string_view text, std::span<char> cell);
// Like put_text(), but "~" is followed by 16 hexadecimal digits of a hash of the full name, so that
// different names stay different.
void put_name(std::string_view name, std::span<char> cell);
std::string get_text(std::span<const char> cell);

}  // namespace telens::record
