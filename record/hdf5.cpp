#include "record/hdf5.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <new>

#include "core/base/error.h"
#include "record/disk_space.h"

namespace telens::record::hdf5 {

namespace {

// How long a fork waits for a thread that is inside HDF5. A flush takes milliseconds; a thread that
// takes longer waits for a disk, perhaps for ever, and the thread that forks (a training program
// that starts the workers of a data loader) must not wait with it. Few children ever call HDF5.
constexpr std::chrono::seconds kPatienceOfFork{2};

// Used by the thread that forks, between the handlers before and after.
thread_local bool fork_has_lock = false;

// Set in a child that was made while another thread was inside: of that call it has the
// half-changed memory and not the thread that would finish it.
bool forked_inside = false;

}  // namespace

// A fork waits until no thread is inside HDF5: its child, which has none of the other threads,
// finds the library in order and the lock free. There the lock is made anew, since a thread cannot
// release what belongs to its parent's thread.
std::recursive_timed_mutex& Lock::mutex() {
  static auto* const mutex = [] {
    pthread_atfork([] { fork_has_lock = Lock::mutex().try_lock_for(kPatienceOfFork); },
                   [] {
                     if (fork_has_lock) Lock::mutex().unlock();
                   },
                   [] {
                     forked_inside = forked_inside || !fork_has_lock;
                     new (&Lock::mutex()) std::recursive_timed_mutex;
                   });
    return new std::recursive_timed_mutex;  // outlives writers closed at exit
  }();
  return *mutex;
}

namespace {

// After a write that failed for good, HDF5 keeps a file that it can neither write nor let go of,
// and its own exit handler crashes on it: the end of a full disk would be the end of the training
// program. So there is no such handler; the session closes its files at exit itself.
void do_without_exit_handler() { H5dont_atexit(); }

}  // namespace

Lock::Lock() : lock_(mutex()) {
  if (forked_inside) {
    raise<RecordError>(
        "this process was forked while a thread of its parent wrote or read a run file for longer "
        "than {} s, so HDF5 cannot be used in it; record and read in a process that is started "
        "anew (multiprocessing_context=\"spawn\")",
        kPatienceOfFork.count());
  }
  static std::once_flag first;
  std::call_once(first, do_without_exit_handler);
  H5Eget_auto2(H5E_DEFAULT, &handler_, &handler_data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Lock::~Lock() { H5Eset_auto2(H5E_DEFAULT, handler_, handler_data_); }

namespace {

// The innermost description on HDF5's error stack; empty if there is none.
std::string innermost_description() {
  std::string cause;
  const auto keep_description = [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
    if (error->desc != nullptr) *static_cast<std::string*>(out) = error->desc;
    return 1;  // the innermost comes first
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_description, &cause);
  return cause;
}

// The system's message, which HDF5 lists among 10 numbers in two lines if the system refused a
// call; nullopt for other errors.
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
  Handle type = checked(H5Tcreate(H5T_COMPOUND, row_bytes), H5Tclose, "cannot make a row type");
  for (const Column& column : columns) {
    check(H5Tinsert(type, column.name, column.offset, column.type), "cannot make a row type");
  }
  return type;
}

Handle text_type(std::size_t width) {
  Handle type = checked(H5Tcopy(H5T_C_S1), H5Tclose, "cannot make a text type");
  check(H5Tset_size(type, width), "cannot make a text type");
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
                     H5Tcommitted(type) > 0 ? ", whose type is an object of its own" : "");
}

}  // namespace telens::record::hdf5
