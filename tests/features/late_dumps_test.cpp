// Which files DumpTensors has written, and when, if its tensors reach the host late, as on a GPU.
#include <gmock/gmock.h>

#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "features/dump_tensors/dump_tensors.h"
#include "tests/hooks/late_copies.h"
#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const char* const kSection =
    "LateDumps: {enabled: True, tensors: [activation], high_precision_tensor: True}\n";

class LateDumps : public testing::SessionTest {
 protected:
  // DumpTensors under another name.
  void begin(std::size_t most_bytes = features::DumpWriter::kMostBytes) {
    config::FeatureDescription description = features::dump_tensors_description();
    description.name = "LateDumps";
    description.owner = "the test";
    register_feature({description, [this, most_bytes](const config::FeatureEntry& entry,
                                                      FeatureServices& services) {
                        return std::make_unique<features::DumpTensors>(entry, services,
                                                                       late.copies(), most_bytes);
                      }});
    debug::initialize(options(testing::section(kSection)));
  }
  void TearDown() override {
    debug::end_debug();
    unregister_features("the test");
  }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    const std::filesystem::path dumps = folder.path() / "tensor_dumps/rank_0";
    if (!std::filesystem::exists(dumps)) return names;
    for (const auto& each : std::filesystem::recursive_directory_iterator(dumps)) {
      if (each.is_regular_file()) names.push_back(each.path().lexically_relative(dumps).string());
    }
    std::ranges::sort(names);
    return names;
  }

  // Waits up to 10 s for files, because a thread writes them.
  std::vector<std::string> files_once(const std::function<bool()>& there) const {
    for (int i = 0; i < 1000 && !there(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return files();
  }

  testing::LateCopies late;
  testing::FakeLayer layer{"fc1"};
};

TEST_F(LateDumps, are_written_after_arrival_with_their_iteration) {
  begin();
  layer.run();
  debug::step();
  layer.run();
  debug::step();
  EXPECT_THAT(files(), IsEmpty());
  late.let_arrive(1);
  debug::step();
  EXPECT_THAT(files_once([&] { return files().size() == 1; }),
              ElementsAre("iter_000000/fc1_activation.h5"));
  EXPECT_EQ(late.waited(), 0);
  debug::end_debug();
  EXPECT_THAT(files(),
              ElementsAre("iter_000000/fc1_activation.h5", "iter_000001/fc1_activation.h5"));
  EXPECT_EQ(late.waited(), 1);
}

TEST_F(LateDumps, that_have_come_at_once_are_written_at_once) {
  late.let_arrive(1);
  begin();
  layer.run();
  EXPECT_THAT(files(), ElementsAre("iter_000000/fc1_activation.h5"));
}

TEST_F(LateDumps, keep_the_order_of_micro_batches) {
  begin();
  for (const std::int64_t rows : {1, 1000, 1000000}) layer.run(at::ones({rows, 1}));
  late.let_arrive(2);
  debug::step();
  late.let_arrive(3);
  debug::end_debug();
  ASSERT_EQ(files().size(), 3U);
  const std::filesystem::path iteration = folder.path() / "tensor_dumps/rank_0/iter_000000";
  const auto bytes = [&](const char* name) { return std::filesystem::file_size(iteration / name); };
  EXPECT_LT(bytes("fc1_activation.h5"), bytes("fc1_activation.1.h5"));
  EXPECT_LT(bytes("fc1_activation.1.h5"), bytes("fc1_activation.2.h5"));
}

TEST_F(LateDumps, wait_where_too_many_are_under_way_and_say_so) {
  const std::size_t of_one = 2 * 4 * sizeof(float);
  begin(/*most_bytes=*/2 * of_one);
  layer.run();
  layer.run();
  EXPECT_EQ(late.waited(), 0);
  EXPECT_THAT(messages(), Not(HasSubstr("training waited")));
  layer.run();
  EXPECT_EQ(late.waited(), 3);
  EXPECT_EQ(files().size(), 3U);
  EXPECT_THAT(messages(), HasSubstr("on their way to the disk, so training waited"));
  layer.run();
  EXPECT_EQ(late.waited(), 3) << "there is room again";
}

TEST_F(LateDumps, write_error_disables_feature_with_one_warning) {
  begin();
  layer.run();
  late.let_arrive(1);
  // A file has the place of the folder.
  std::ofstream(folder.path() / "tensor_dumps") << "taken";
  debug::step();
  files_once([&] {
    debug::step();
    return messages().find("is disabled") != std::string::npos;
  });
  EXPECT_THAT(messages(), HasSubstr("'LateDumps' of section 'section'"));
  EXPECT_THAT(messages(), HasSubstr("tensor_dumps"));
}

}  // namespace
}  // namespace telens
