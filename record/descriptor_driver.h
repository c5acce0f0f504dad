// How HDF5 reads a run file: through a file driver that knows an open descriptor and no name, and
// that no length in the file makes longer than the file.
#pragma once

#include "record/hdf5.h"

namespace telens::record {

// Has H5Fopen with these file access properties read the open file `descriptor`, whatever name it
// is given. So what was checked is what is read, also where the name goes to another file
// meanwhile. The file that is opened keeps a descriptor of its own.
//
// A read that is longer than the file, and one of metadata that is beyond its limits
// (metadata_limits.h), make HDF5's call fail. The driver that HDF5 comes with gives zeros behind
// the end of a file, which under H5F_ACC_SWMR_READ is no limit: a block of metadata whose length
// was changed would fill the memory.
void set_descriptor_driver(hid_t access, int descriptor);

}  // namespace telens::record
