#include "record/object_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "core/base/error.h"
#include "record/layout_refusal.h"

namespace telens::record {
namespace {

#if H5_VERSION_GE(1, 12, 0)
using ObjectInfo = H5O_info1_t;
using LinkInfo = H5L_info1_t;
const auto link_info = H5Lget_info1;
const auto iterate = H5Literate1;
#else
using ObjectInfo = H5O_info_t;
using LinkInfo = H5L_info_t;
const auto link_info = H5Lget_info;
const auto iterate = H5Literate;
#endif
constexpr unsigned kChecksummedHeader = 2;  // the version of object headers that have checksums

std::string_view kind_name(int type) {
  switch (type) {
    case H5O_TYPE_GROUP:
      return "a group";
    case H5O_TYPE_DATASET:
      return "a dataset";
    default:
      return "something else";
  }
}

std::string_view link_name(H5L_type_t type) {
  switch (type) {
    case H5L_TYPE_SOFT:
      return "a soft link";
    case H5L_TYPE_EXTERNAL:
      return "a link to another file";
    default:
      return "a link of an unknown kind";
  }
}

void expect_link(hid_t group, const std::string& name, const std::string& path) {
  LinkInfo link{};
  if (link_info(group, name.c_str(), &link, H5P_DEFAULT) < 0) {
    const std::string why = hdf5::last_error();  // the next call forgets it
    const htri_t exists = H5Lexists(group, name.c_str(), H5P_DEFAULT);
    if (exists == 0) refuse(path, "it in the file", "none");
    raise<RecordError>("{}: {}", path, why);
  }
  if (link.type != H5L_TYPE_HARD) refuse(path, "an object of this file", link_name(link.type));
}

struct AdditionSearch {
  const std::vector<std::string>* expected;
  std::optional<std::string> found;
};

// For H5Literate: ends at the first name that is not expected.
herr_t find_addition(hid_t /*group*/, const char* name, const LinkInfo* /*about*/, void* search) {
  auto& [expected, found] = *static_cast<AdditionSearch*>(search);
  if (std::ranges::find(*expected, name) != expected->end()) return 0;
  found = name;
  return 1;
}

// Names one object that does not belong into the group.
[[noreturn]] void refuse_additions(hid_t group, const std::string& path,
                                   const std::vector<std::string>& expected) {
  AdditionSearch search{&expected, std::nullopt};
  // In the order of storage: HDF5 lists no names in memory then, of which a damaged file may claim
  // any number.
  hdf5::check(iterate(group, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, find_addition, &search), path);
  if (!search.found) refuse(path, "each name once", "one twice");
  refuse(path, "only what TELens writes there",
         fmt::format("'{}' beside it; remove that, and keep data of your own in a file of its own",
                     *search.found));
}

}  // namespace

void ObjectCheck::expect_group(const std::string& path, const std::vector<std::string>& expected) {
  expect_object(path, H5O_TYPE_GROUP);
  const auto group = hdf5::checked(H5Gopen2(file_, path.c_str(), H5P_DEFAULT), H5Gclose, path);
  H5G_info_t about{};
  hdf5::check(H5Gget_info(group, &about), path);
  if (about.nlinks > expected.size()) refuse_additions(group, path, expected);
  for (const std::string& name : expected) {
    expect_link(group, name, path == "/" ? name : fmt::format("{}/{}", path, name));
  }
  if (about.nlinks != expected.size()) refuse(path, "each name once", "one twice");
}

void ObjectCheck::expect_dataset(const std::string& path) { expect_object(path, H5O_TYPE_DATASET); }

void ObjectCheck::expect_no_other_names() const {
  if (!named_twice_.empty()) refuse(named_twice_.front(), "one name for it", "several");
}

void ObjectCheck::expect_object(const std::string& path, int type) {
  ObjectInfo about{};
  hdf5::check(
      H5Oget_info_by_name2(file_, path.c_str(), &about, H5O_INFO_BASIC | H5O_INFO_HDR, H5P_DEFAULT),
      path);
  if (about.type != type) refuse(path, kind_name(type), kind_name(about.type));
  if (about.hdr.version != kChecksummedHeader) {
    refuse(path, fmt::format("a header of version {}", kChecksummedHeader),
           fmt::format("{}", about.hdr.version));
  }
  const auto [known, is_new] = at_.emplace(about.addr, path);
  if (!is_new) {
    refuse(path, "an object of its own", fmt::format("the same as {}", known->second));
  }
  if (about.rc != 1) named_twice_.push_back(path);
}

}  // namespace telens::record
