#include "record/attributes.h"

#include <vector>

#include "core/base/error.h"
#include "record/text_cell.h"

namespace telens::record {
namespace {

constexpr std::size_t kLongestText = 64 << 10;  // bytes; HDF5 keeps no more in an object's header

// True if a number uses all bits of its bytes, as every type of C does. HDF5 converts
// others bit by bit, and does not look whether a damaged type's bits lie within its bytes.
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

// An attribute that is a single value of the class, at most so large.
hdf5::Handle open(hid_t object, const char* name, H5T_class_t expected, std::size_t most_bytes) {
  auto attribute = hdf5::checked(H5Aopen(object, name, H5P_DEFAULT), H5Aclose, name);
  const auto space = hdf5::checked(H5Aget_space(attribute), H5Sclose, name);
  const auto type = hdf5::checked(H5Aget_type(attribute), H5Tclose, name);
  const bool single = H5Sget_simple_extent_type(space) == H5S_SCALAR;
  const bool fits = H5Tget_class(type) == expected && H5Tget_size(type) <= most_bytes &&
                    H5Tis_variable_str(type) <= 0 && H5Tcommitted(type) <= 0;
  if (!single || !fits) {
    raise<RecordError>("attribute {}: expected one {}, came {}{}", name, hdf5::class_name(expected),
                       single ? "" : "an array of ", hdf5::description(type));
  }
  if (!is_plain_number(type)) {
    raise<RecordError>("attribute {}: expected a number of all bits of its {} bytes, came another",
                       name, H5Tget_size(type));
  }
  return attribute;
}

}  // namespace

bool has_attribute(hid_t object, const char* name) {
  const htri_t exists = H5Aexists(object, name);
  hdf5::check(exists, name);
  return exists > 0;
}

std::int64_t read_integer(hid_t object, const char* name, std::int64_t least, std::int64_t most) {
  const auto attribute = open(object, name, H5T_INTEGER, sizeof(std::int64_t));
  std::int64_t value = 0;
  hdf5::check(H5Aread(attribute, H5T_NATIVE_INT64, &value), name);
  if (value < least || value > most) {
    raise<RecordError>("attribute {}: expected {} to {}, came {}", name, least, most, value);
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
  const auto attribute = open(object, name, H5T_STRING, kLongestText);
  const auto type = hdf5::checked(H5Aget_type(attribute), H5Tclose, name);
  std::vector<char> text(H5Tget_size(type));
  hdf5::check(H5Aread(attribute, type, text.data()), name);
  return get_text(text);
}

}  // namespace telens::record
