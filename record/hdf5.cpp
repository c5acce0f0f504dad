#include "record/hdf5.h"

#include <fmt/format.h>
#include <pthread.h>
#include <algorithm>
#include <chrono>
#include <new>
#include <vector>

#include "core/base/error.h"
#include "core/base/fnv1a.h"
#include "record/disk_space.h"

namespace telens::record::hdf5 {

namespace {

// How long fork() waits for a thread that is inside HDF5. A flush takes milliseconds. A thread that
// takes longer waits for a disk, possibly forever, and the forking thread (a training program that
// starts the workers of a data loader) must not wait too. Few children ever call HDF5.
constexpr std::chrono::seconds kForkTimeout{2};

// Set between the atfork handlers, on the forking thread.
thread_local bool fork_has_lock = false;

// Set in a child that was forked while another thread was inside HDF5: the child has that thread's
// unfinished changes to HDF5's memory, but not the thread.
bool forked_inside_hdf5 = false;

}  // namespace

// A fork waits until no thread is inside HDF5, so that its child, which has only the forking
// thread, gets a consistent library and a free lock. The child constructs a new mutex, since a
// thread cannot unlock a mutex that belongs to the parent's thread.
std::recursive_timed_mutex& Lock::mutex() {
  static auto* const mutex = [] {
    pthread_atfork([] { fork_has_lock = Lock::mutex().try_lock_for(kForkTimeout); },
                   [] {
                     if (fork_has_lock) Lock::mutex().unlock();
                   },
                   [] {
                     forked_inside_hdf5 = forked_inside_hdf5 || !fork_has_lock;
                     new (&Lock::mutex()) std::recursive_timed_mutex;
                   });
    return new std::recursive_timed_mutex;  // outlives writers closed at exit
  }();
  return *mutex;
}

namespace {

// After a write that failed permanently, HDF5 keeps a file that it can neither write nor close, and
// its exit handler crashes on it: a full disk would crash the training program. The handler is
// therefore disabled, and the session closes its files at exit.
void disable_exit_handler() { H5dont_atexit(); }

}  // namespace

Lock::Lock() : lock_(mutex()) {
  if (forked_inside_hdf5) {
    raise<RecordError>(
        "this process was forked while a thread of its parent used HDF5 for more than {} s, so it "
        "cannot use HDF5; start it with multiprocessing_context=\"spawn\"",
        kForkTimeout.count());
  }
  static std::once_flag first;
  std::call_once(first, disable_exit_handler);
  H5Eget_auto2(H5E_DEFAULT, &handler_, &handler_data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Lock::~Lock() { H5Eset_auto2(H5E_DEFAULT, handler_, handler_data_); }

namespace {

// Returns the innermost description on HDF5's error stack, or "" if there is none.
std::string innermost_description() {
  std::string cause;
  const auto keep_description = [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
    if (error->desc != nullptr) *static_cast<std::string*>(out) = error->desc;
    return 1;  // the walk starts with the innermost
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_description, &cause);
  return cause;
}

// Returns the message of the operating system, which HDF5 prints among 10 numbers in two lines if a
// system call failed. Returns nullopt for other errors.
std::optional<std::string> system_message(const std::string& description) {
  constexpr std::string_view kMessage = "error message = '";
  const std::size_t begin = description.find(kMessage);
  if (begin == std::string::npos) return std::nullopt;
  const std::size_t end = description.find('\'', begin + kMessage.size());
  return description.substr(begin + kMessage.size(), end - begin - kMessage.size());
}

[[noreturn]] void raise_failure(std::string_view what) {
  if (const auto message = system_message(innermost_description())) {
    raise<SystemError>("{}: {}", what, *message);
  }
  raise<RecordError>("{}: {}", what, last_error());
}

}  // namespace

std::string last_error() {
  const std::string cause = innermost_description();
  return cause.empty() ? "unknown cause" : system_message(cause).value_or(cause);
}

std::optional<std::string> last_system_error() {
  std::optional<std::string> cause;
  const auto keep_description = [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
    if (error->min_num != H5E_SYSERRSTR || error->desc == nullptr) return 0;
    *static_cast<std::optional<std::string>*>(out) = error->desc;
    return 1;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_description, &cause);
  return cause;
}

bool is_truncation_error() {
  bool is_truncated = false;
  const auto find_truncation = [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
    *static_cast<bool*>(out) = error->min_num == H5E_TRUNCATED;
    return *static_cast<bool*>(out) ? 1 : 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, find_truncation, &is_truncated);
  return is_truncated;
}

void check(herr_t status, std::string_view what) {
  if (status < 0) raise_failure(what);
}

Handle checked(hid_t id, Handle::Close close, std::string_view what) {
  if (id < 0) raise_failure(what);
  return {id, close};
}

Handle row_type(std::size_t row_bytes, std::span<const Column> columns) {
  Handle type = checked(H5Tcreate(H5T_COMPOUND, row_bytes), H5Tclose, "cannot create a row type");
  for (const Column& column : columns) {
    check(H5Tinsert(type, column.name, column.offset, column.type), "cannot create a row type");
  }
  return type;
}

Handle text_type(std::size_t width) {
  Handle type = checked(H5Tcopy(H5T_C_S1), H5Tclose, "cannot create a text type");
  check(H5Tset_size(type, width), "cannot create a text type");
  H5Tset_strpad(type, H5T_STR_NULLPAD);
  H5Tset_cset(type, H5T_CSET_UTF8);
  return type;
}

std::uint64_t row_count(hid_t dataset) {
  const Handle space = checked(H5Dget_space(dataset), H5Sclose, "cannot get a table's length");
  return static_cast<std::uint64_t>(std::max<hssize_t>(0, H5Sget_simple_extent_npoints(space)));
}

std::string class_name(H5T_class_t type_class) {
  switch (type_class) {
    case H5T_INTEGER:
      return "integer";
    case H5T_FLOAT:
      return "float";
    case H5T_STRING:
      return "text of fixed length";
    case H5T_COMPOUND:
      return "compound";
    case H5T_ARRAY:
      return "array";
    case H5T_VLEN:
      return "list of variable length";
    case H5T_REFERENCE:
      return "reference";
    default:
      return "something else";
  }
}

std::string description(hid_t type) {
  if (H5Tis_variable_str(type) > 0) return "text of variable length";
  return fmt::format("{} of {} bytes{}", class_name(H5Tget_class(type)), H5Tget_size(type),
                     H5Tcommitted(type) > 0 ? ", whose type is a separate object" : "");
}

}  // namespace telens::record::hdf5

namespace telens::record {

namespace {

constexpr std::size_t kMaxTextBytes = 64 << 10;  // bytes; the limit of HDF5 for an object header

// Returns true if a number uses all bits of its bytes, like every type of C. HDF5 converts other
// numbers bit by bit and does not check that a damaged type's bits are within its bytes.
bool is_plain_number(hid_t type) {
  switch (H5Tget_class(type)) {
    case H5T_INTEGER:
      return H5Tget_offset(type) == 0 && H5Tget_precision(type) == 8 * H5Tget_size(type);
    case H5T_FLOAT:
      return H5Tequal(type, H5T_NATIVE_DOUBLE) > 0 || H5Tequal(type, H5T_NATIVE_FLOAT) > 0;
    default:
      return true;
  }
}

// Opens an attribute that is a single value of the given class and of at most `max_bytes`.
hdf5::Handle open(hid_t object, const char* name, H5T_class_t expected, std::size_t max_bytes) {
  auto attribute = hdf5::checked(H5Aopen(object, name, H5P_DEFAULT), H5Aclose, name);
  const auto space = hdf5::checked(H5Aget_space(attribute), H5Sclose, name);
  const auto type = hdf5::checked(H5Aget_type(attribute), H5Tclose, name);
  const bool single = H5Sget_simple_extent_type(space) == H5S_SCALAR;
  const bool fits = H5Tget_class(type) == expected && H5Tget_size(type) <= max_bytes &&
                    H5Tis_variable_str(type) <= 0 && H5Tcommitted(type) <= 0;
  if (!single || !fits) {
    raise<RecordError>("attribute {}: expected one {}, got {}{}", name, hdf5::class_name(expected),
                       single ? "" : "an array of ", hdf5::description(type));
  }
  if (!is_plain_number(type)) {
    raise<RecordError>("attribute {}: expected a number that uses all bits of its {} bytes", name,
                       H5Tget_size(type));
  }
  return attribute;
}

}  // namespace

bool has_attribute(hid_t object, const char* name) {
  const htri_t exists = H5Aexists(object, name);
  hdf5::check(exists, name);
  return exists > 0;
}

std::int64_t read_integer(hid_t object, const char* name, std::int64_t min, std::int64_t max) {
  const auto attribute = open(object, name, H5T_INTEGER, sizeof(std::int64_t));
  std::int64_t value = 0;
  hdf5::check(H5Aread(attribute, H5T_NATIVE_INT64, &value), name);
  if (value < min || value > max) {
    raise<RecordError>("attribute {}: expected {} to {}, got {}", name, min, max, value);
  }
  return value;
}

double read_real(hid_t object, const char* name) {
  const auto attribute = open(object, name, H5T_FLOAT, sizeof(double));
  double value = 0;
  hdf5::check(H5Aread(attribute, H5T_NATIVE_DOUBLE, &value), name);
  return value;
}

std::string read_text(hid_t object, const char* name) {
  const auto attribute = open(object, name, H5T_STRING, kMaxTextBytes);
  const auto type = hdf5::checked(H5Aget_type(attribute), H5Tclose, name);
  std::vector<char> text(H5Tget_size(type));
  hdf5::check(H5Aread(attribute, type, text.data()), name);
  return get_text(text);
}

namespace {

constexpr std::string_view kTruncationMark = "~";

bool continues_a_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

// Stores as much of `text` as fits before `rest`.
void put_truncated(std::string_view text, std::string_view rest, std::span<char> cell) {
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
  put_truncated(text, kTruncationMark, cell);
}

void put_name(std::string_view name, std::span<char> cell) {
  // a reader stops at the first zero
  const std::string_view readable = name.substr(0, name.find('\0'));
  if (readable.size() == name.size() && name.size() <= cell.size()) return put_whole(name, cell);
  put_truncated(readable, fmt::format("{}{:016x}", kTruncationMark, fnv1a(name)), cell);
}

std::string get_text(std::span<const char> cell) {
  return {cell.begin(), std::ranges::find(cell, '\0')};
}

}  // namespace telens::record
