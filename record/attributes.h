// Attributes of an HDF5 object, each a single number or text: anything else is a RecordError that
// names the attribute. An array read as a number would overwrite memory behind it.
#pragma once

#include <cstdint>
#include <string>

#include "record/hdf5.h"

namespace telens::record {

bool has_attribute(hid_t object, const char* name);
// Within [least, most].
std::int64_t read_integer(hid_t object, const char* name, std::int64_t least, std::int64_t most);
double read_real(hid_t object, const char* name);
std::string read_text(hid_t object, const char* name);

}  // namespace telens::record
