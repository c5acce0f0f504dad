#include "core/distributed/collective_watch.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace telens::collective_watches {
namespace {

struct Watches {
  std::mutex mutex;
  std::vector<std::shared_ptr<CollectiveWatch>> all;
};

Watches& watches() {
  static auto& instance = *new Watches;  // leaked: threads may run while the process exits
  return instance;
}

}  // namespace

std::atomic<int> count{0};

void add(const std::shared_ptr<CollectiveWatch>& watch) {
  const std::lock_guard lock(watches().mutex);
  watches().all.push_back(watch);
  count = static_cast<int>(watches().all.size());
}

void remove(const std::shared_ptr<CollectiveWatch>& watch) {
  const std::lock_guard lock(watches().mutex);
  std::erase(watches().all, watch);
  count = static_cast<int>(watches().all.size());
}

CollectiveWatch::OnResult show(const CollectiveCall& call) {
  std::vector<std::shared_ptr<CollectiveWatch>> all;
  {
    const std::lock_guard lock(watches().mutex);
    all = watches().all;
  }
  std::vector<std::pair<std::shared_ptr<CollectiveWatch>, CollectiveWatch::OnResult>> wanted;
  for (const auto& watch : all) {
    if (auto on_result = watch->begin(call)) wanted.emplace_back(watch, std::move(on_result));
  }
  if (wanted.empty()) return {};
  return [wanted = std::move(wanted)](const at::Tensor& result) {
    for (const auto& [watch, on_result] : wanted) on_result(result);
  };
}

}  // namespace telens::collective_watches
