// Plugins: the sample is loaded and run. Libraries that are not suitable plugins are refused with
// the reason.
#include <elf.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hooks/plugin_loader.h"
#include "hooks/plugin_versions.h"
#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using ::testing::AllOf;
using testing::FakeLayer;
using testing::get_values;
using ::testing::HasSubstr;
using testing::section;
using testing::stored_values;
using testing::StoredValue;
using testing::TemporaryFolder;
using ::testing::ThrowsMessage;

namespace fs = std::filesystem;

class PluginTest : public testing::SessionTest {
 protected:
  // Returns the error of initialize with these plugins; "" if there is none.
  std::string error_with(const std::vector<std::string>& feature_dirs) {
    debug::InitializeOptions with_plugins = options();
    with_plugins.feature_dirs = feature_dirs;
    try {
      debug::initialize(with_plugins);
    } catch (const UsageError& error) {
      EXPECT_FALSE(debug::is_initialized());
      return error.what();
    }
    return "";
  }

  // Makes a folder with a copy of one library.
  std::string folder_with(const fs::path& library) {
    const fs::path folder_of_library = plugins.path() / library.stem();
    fs::create_directories(folder_of_library);
    fs::copy(library, folder_of_library);
    return folder_of_library.string();
  }

  TemporaryFolder plugins;
};

TEST_F(PluginTest, the_sample_plugin_runs_from_yaml) {
  debug::InitializeOptions with_plugin = options();
  with_plugin.feature_dirs = {SAMPLE_PLUGIN_FOLDER};
  with_plugin.config_file = SAMPLE_PLUGIN_CONFIG;
  debug::initialize(with_plugin);
  EXPECT_THAT(debug::list_features(), ::testing::Contains("telens.LogOutliers"));

  // One of 100 elements is 100 times larger than the others, which is far beyond 6 root mean
  // squares.
  at::Tensor x = at::ones({10, 10});
  x[0][0] = 100;
  FakeLayer layer;
  for (int i = 0; i < 2; ++i) {
    layer.run(x);
    layer.run(at::ones({10, 10}));  // the second micro-batch has none
    debug::step();
  }
  debug::end_debug();
  std::vector<std::string> rows;
  for (const StoredValue& each : stored_values(folder.str())) {
    rows.push_back(fmt::format("{} {} {} {}={}", each.iteration, each.layer, each.tensor,
                               each.statistic, each.value));
  }
  EXPECT_THAT(rows, ::testing::ElementsAre("0 layer activation outliers%=0.5",
                                           "0 layer gradient outliers%=0",
                                           "1 layer activation outliers%=0.5"));
}

TEST_F(PluginTest, a_plugins_statistic_is_logged_as_a_built_in_one) {
  debug::InitializeOptions with_plugin = options();
  with_plugin.feature_dirs = {STATISTIC_PLUGIN_FOLDER};
  with_plugin.config_file = STATISTIC_PLUGIN_CONFIG;
  debug::initialize(with_plugin);
  FakeLayer layer;
  at::manual_seed(1);
  const at::Tensor first = at::randn({10, 10}) + 5, second = at::randn({30, 10}) - 3;
  layer.run(first);
  layer.run(second);
  debug::step();
  debug::end_debug();
  const at::Tensor whole = at::cat({first, second}).to(at::kDouble);
  const at::Tensor distance = whole - whole.mean();
  const double expected =
      (distance.pow(4).mean() / distance.square().mean().square()).item<double>() - 3;
  int values = 0;
  for (const StoredValue& each : stored_values(folder.str())) {
    if (each.statistic != "excess_kurtosis") continue;
    EXPECT_NEAR(each.value, expected, 1e-9) << each.tensor;
    ++values;
  }
  EXPECT_EQ(values, 2);
}

TEST_F(PluginTest, plugin_without_torch_sees_handles_and_defines_statistics) {
  debug::InitializeOptions with_plugin = options(
      section("LogTensorStats: {enabled: True, tensors: [activation], stats: [elements]}\n"));
  *with_plugin.config_text +=
      "  telens:\n    LargestMagnitude: {enabled: True, tensors: [activation, gradient]}\n";
  with_plugin.feature_dirs = {folder_with(PLUGIN_WITHOUT_TORCH)};
  debug::initialize(with_plugin);
  at::Tensor x = at::ones({4, 10}, at::kBFloat16).t();
  x[2][1] = -100;
  FakeLayer layer;
  layer.run(x);
  debug::step();
  debug::end_debug();
  EXPECT_THAT(get_values("largest", folder.str()),
              ::testing::ElementsAre("0:layer=100", "0:layer=100"));
  EXPECT_THAT(get_values("elements", folder.str()), ::testing::ElementsAre("0:layer=40"));
}

TEST_F(PluginTest, plugin_without_torch_is_bound_to_no_torch_version) {
  const auto versions = read_plugin_note(PLUGIN_WITHOUT_TORCH);
  ASSERT_TRUE(versions);
  EXPECT_EQ(versions->telens, TELENS_MINOR_VERSION);
  EXPECT_EQ(versions->torch, "");
}

TEST_F(PluginTest, duplicate_statistic_is_an_error_that_names_both_plugins) {
  fs::create_directories(plugins.path() / "a");
  fs::create_directories(plugins.path() / "b");
  fs::copy(STATISTIC_PLUGIN, plugins.path() / "a/first.so");
  fs::copy(STATISTIC_PLUGIN, plugins.path() / "b/second.so");
  EXPECT_THAT(error_with({plugins.str()}),
              AllOf(HasSubstr("first.so"), HasSubstr("second.so"), HasSubstr("excess_kurtosis")));
}

TEST_F(PluginTest, features_are_unknown_without_the_plugin_folder) {
  ASSERT_EQ(error_with({SAMPLE_PLUGIN_FOLDER}), "");
  debug::end_debug();
  debug::InitializeOptions without = options();
  without.config_file = SAMPLE_PLUGIN_CONFIG;
  EXPECT_THROW(debug::initialize(without), ConfigError);
}

TEST_F(PluginTest, the_note_is_read_without_opening_the_library) {
  const auto versions = read_plugin_note(SAMPLE_PLUGIN);
  ASSERT_TRUE(versions);
  EXPECT_EQ(versions->telens, TELENS_MINOR_VERSION);
  EXPECT_EQ(versions->torch, TELENS_TORCH_MINOR_VERSION);
  EXPECT_FALSE(read_plugin_note(PLUGIN_WITHOUT_NOTE));
}

TEST_F(PluginTest, plugin_for_other_versions_is_rejected_unopened) {
  EXPECT_THAT(
      error_with({folder_with(PLUGIN_FOR_OTHER_VERSIONS)}),
      AllOf(HasSubstr("other_versions.so"), HasSubstr("telens 0.0 and torch 1.13"),
            HasSubstr("telens " TELENS_MINOR_VERSION " with torch " TELENS_TORCH_MINOR_VERSION)));
}

TEST_F(PluginTest, a_library_without_note_or_entry_is_refused) {
  EXPECT_THAT(error_with({folder_with(PLUGIN_WITHOUT_NOTE)}),
              AllOf(HasSubstr("without_note.so"), HasSubstr("TELENS_PLUGIN")));
  EXPECT_THAT(error_with({folder_with(PLUGIN_WITHOUT_ENTRY)}),
              AllOf(HasSubstr("without_entry.so"), HasSubstr("telens_register_features")));
}

TEST_F(PluginTest, files_that_are_not_libraries_are_rejected) {
  std::ofstream(plugins.path() / "text.so") << "this is no library, whatever its name says";
  EXPECT_THAT(error_with({plugins.str()}), HasSubstr("not a 64-bit ELF"));
}

TEST_F(PluginTest, a_damaged_library_is_refused_wherever_it_ends) {
  const std::string whole = testing::to_text(SAMPLE_PLUGIN);
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{63}, std::size_t{64}, std::size_t{200}}) {
    const fs::path path = plugins.path() / "cut.so";
    std::ofstream(path, std::ios::binary).write(whole.data(), static_cast<std::streamsize>(size));
    EXPECT_THROW(read_plugin_note(path), UsageError) << size;
  }
}

TEST_F(PluginTest, a_library_with_a_damaged_number_of_segments_is_refused) {
  std::string damaged = testing::to_text(SAMPLE_PLUGIN);
  const std::uint16_t segments = UINT16_MAX;
  std::memcpy(damaged.data() + offsetof(Elf64_Ehdr, e_phnum), &segments, sizeof(segments));
  const fs::path path = plugins.path() / "damaged.so";
  std::ofstream(path, std::ios::binary) << damaged;
  EXPECT_THAT([&] { read_plugin_note(path); },
              ThrowsMessage<UsageError>(HasSubstr("65535 segments")));
}

TEST_F(PluginTest, pipe_is_rejected) {
  const fs::path path = plugins.path() / "pipe.so";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT([&] { read_plugin_note(path); },
              ThrowsMessage<UsageError>(HasSubstr("not a regular file")));
}

TEST_F(PluginTest, a_folder_that_is_missing_is_an_error) {
  EXPECT_THAT(error_with({"/no/such/folder"}), HasSubstr("/no/such/folder"));
}

TEST_F(PluginTest, duplicate_feature_is_an_error_that_names_both_plugins) {
  fs::create_directories(plugins.path() / "a");
  fs::create_directories(plugins.path() / "b");
  fs::copy(SAMPLE_PLUGIN, plugins.path() / "a/first.so");
  fs::copy(SAMPLE_PLUGIN, plugins.path() / "b/second.so");
  EXPECT_THAT(error_with({plugins.str()}),
              AllOf(HasSubstr("first.so"), HasSubstr("second.so"), HasSubstr("LogOutliers")));
}

}  // namespace
}  // namespace telens
