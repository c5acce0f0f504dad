// Files that are replaced while they are used, and file systems with unstable inode numbers, on
// which all files seem to be replaced.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <thread>

#include "record/claims.h"
#include "record/run_paths.h"
#include "record/segment_reader.h"
#include "tests/record/crash_fixture.h"
#include "tests/record/damaged_file.h"

namespace telens::record {
namespace {

std::atomic<bool> inodes_change = false;
std::atomic<std::time_t> seconds_older =
    0;  // all files seem to have been written this much earlier
std::atomic<ino_t> next_inode = ino_t{1} << 40;  // no file of the test has this number

std::function<void(int)> before_opening;  // called with the number of earlier openings by HDF5
int openings = 0;
int dataset_openings = 0;

}  // namespace
}  // namespace telens::record

// These definitions take precedence over those of libc and HDF5.
extern "C" int fstat(int file, struct stat* status) noexcept {
  const int result = ::fstatat(file, "", status, AT_EMPTY_PATH);
  if (telens::record::inodes_change) status->st_ino = ++telens::record::next_inode;
  status->st_mtim.tv_sec -= telens::record::seconds_older;
  status->st_ctim.tv_sec -= telens::record::seconds_older;
  return result;
}

extern "C" hid_t H5Fopen(const char* path, unsigned flags, hid_t access) {
  using Open = hid_t (*)(const char*, unsigned, hid_t);
  static const auto open = reinterpret_cast<Open>(::dlsym(RTLD_NEXT, "H5Fopen"));
  if (telens::record::before_opening) telens::record::before_opening(telens::record::openings++);
  return open(path, flags, access);
}

extern "C" hid_t H5Dopen2(hid_t location, const char* name, hid_t access) {
  using Open = hid_t (*)(hid_t, const char*, hid_t);
  static const auto open = reinterpret_cast<Open>(::dlsym(RTLD_NEXT, "H5Dopen2"));
  ++telens::record::dataset_openings;
  return open(location, name, access);
}

namespace telens::record {
namespace {

using ::testing::HasSubstr;

constexpr unsigned kSeconds = 20;  // a longer loop counts as endless

std::string closed_run(const TemporaryFolder& folder) {
  const auto writer = RunWriter::open(options_in(folder));
  name_everything(*writer);
  writer->push(numbered_records(0, 100));
  writer->close();
  return writer->path();
}

void add_dataset(const std::string& path) {
  const hdf5::Lock lock;
  const hdf5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
  const hdf5::Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const hdf5::Handle dataset(
      H5Dcreate2(file, "another", H5T_NATIVE_INT, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
      H5Dclose);
  ASSERT_GE(static_cast<hid_t>(dataset), 0);
}

// Runs before the reader's opening number `opening`, counted from 0.
void replace_before(int opening, const std::string& path, const std::string& other) {
  openings = 0;
  before_opening = [=](int opened_before) {
    if (opened_before != opening) return;
    EXPECT_EQ(std::rename(other.c_str(), path.c_str()), 0);
  };
}

// The superblock is checked before the first opening, everything else after it.
TEST(ReplacedFile, checked_file_is_the_file_that_is_read) {
  for (const int opening : {0, 1}) {
    const TemporaryFolder folder;
    const std::string path = closed_run(folder);
    const std::string other = path + ".other";
    std::filesystem::copy_file(path, other);
    add_dataset(other);
    replace_before(opening, path, other);
    EXPECT_EQ(SegmentReader(path).about().records, 100U) << opening;
    EXPECT_EQ(openings, 2);
    before_opening = nullptr;
    try {
      const SegmentReader reader(path);
      ADD_FAILURE() << "the file that has the name now is not looked at";
    } catch (const RecordError& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("expected only objects that TELens writes, got 'another'"));
    }
  }
}

// The number of times HDF5 opens the file and its datasets for one reader.
struct Openings {
  int files;
  int datasets;

  bool operator==(const Openings&) const = default;
};

Openings count_openings(const std::string& path) {
  openings = 0;
  dataset_openings = 0;
  before_opening = [](int) {};
  const SegmentReader reader(path);
  before_opening = nullptr;
  EXPECT_EQ(reader.about().records, 100U);
  return {openings, dataset_openings};
}

// The file's times as fstat returns them: in the future, which is recent for all times of a slow
// test, or long ago.
class FilesSeem {
 public:
  enum Age : std::time_t { just_written = -3600, long_written = 3600 };
  explicit FilesSeem(Age age) { seconds_older = age; }
  ~FilesSeem() { seconds_older = 0; }
  FilesSeem(const FilesSeem&) = delete;
  FilesSeem& operator=(const FilesSeem&) = delete;
};

TEST(CheckedFile, is_checked_once_if_unchanged) {
  const TemporaryFolder folder;
  const std::string path = closed_run(folder);
  const std::string copy = path + ".copy";
  std::filesystem::copy_file(path, copy);
  {
    const FilesSeem files(FilesSeem::just_written);
    const Openings first = count_openings(path);
    EXPECT_EQ(first.files, 2);
    EXPECT_EQ(count_openings(path), first) << "a change could still carry the same time";
  }
  const FilesSeem files(FilesSeem::long_written);
  const Openings checked = count_openings(path);
  EXPECT_EQ(checked.files, 1) << "it is read where it was checked";
  const Openings known = count_openings(path);
  EXPECT_EQ(known.files, 1);
  EXPECT_LT(known.datasets, checked.datasets);
  EXPECT_EQ(count_openings(copy), checked) << "another file";
}

// With its old size and modification time, as a malicious program could do.
TEST(CheckedFile, is_checked_again_after_a_hidden_change) {
  const TemporaryFolder folder;
  const std::string path = closed_run(folder);
  const std::string original = get_bytes(path);
  add_dataset(path);
  const std::string changed = get_bytes(path);
  write_bytes(path, original + std::string(changed.size() - original.size(), '\0'));
  const FilesSeem files(FilesSeem::long_written);
  const Openings checked = count_openings(path);
  EXPECT_LT(count_openings(path).datasets, checked.datasets);
  // The clock of a file system advances in steps of some milliseconds.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto written = std::filesystem::last_write_time(path);
  write_bytes(path, changed);
  std::filesystem::last_write_time(path, written);
  try {
    const SegmentReader reader(path);
    ADD_FAILURE() << "what was added is not seen";
  } catch (const RecordError& error) {
    EXPECT_THAT(error.what(), HasSubstr("expected only objects that TELens writes"));
  }
}

TEST(UnstableInodes, do_not_prevent_reading) {
  const TemporaryFolder folder;
  const std::string path = closed_run(folder);
  EXPECT_EQ(get_status([&] {
              ::alarm(kSeconds);
              inodes_change = true;
              ::_exit(SegmentReader(path).about().records == 100 ? 0 : 1);
            }),
            0);
}

TEST(UnstableInodes, do_not_start_a_file_for_each_write) {
  const TemporaryFolder folder;
  EXPECT_EQ(get_status([&] {
              ::alarm(kSeconds);
              inodes_change = true;
              const auto writer = RunWriter::open(options_in(folder));
              name_everything(*writer);
              for (int i = 0; i < 5; ++i) {
                writer->push(numbered_records(i, i + 1));
                writer->flush();
              }
              writer->close();
              ::_exit(run_files(folder.str()).size() == 1 ? 0 : 1);
            }),
            0);
}

TEST(UnstableInodes, keep_rank_claims_exclusive) {
  const TemporaryFolder folder;
  const std::string run = run_folder(folder.str(), "run");
  EXPECT_EQ(get_status([&] {
              ::alarm(kSeconds);
              inodes_change = true;
              const auto claim = RankClaim::take(run, 0);
              if (claim == nullptr || claim->is_exclusive()) ::_exit(1);
              ::_exit(get_status([&] { ::_exit(RankClaim::take(run, 0) == nullptr ? 0 : 1); }));
            }),
            0);
}

TEST(UnstableInodes, keep_rewrite_claims_exclusive) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "file").string();
  std::ofstream(path) << "x";
  EXPECT_EQ(get_status([&] {
              ::alarm(kSeconds);
              inodes_change = true;
              const RewriteClaim claim(path);
              try {
                const RewriteClaim another(path);
              } catch (const BeingRewritten&) {
                ::_exit(0);
              }
              ::_exit(1);
            }),
            0);
}

}  // namespace
}  // namespace telens::record
