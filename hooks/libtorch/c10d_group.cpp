#include "hooks/libtorch/c10d_group.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <utility>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include "core/distributed/collectives.h"
#include "core/distributed/process_group.h"
#include "core/distributed/state_by_group.h"
#include "hooks/rank_checker.h"

namespace telens {
namespace {

std::vector<std::uint8_t> to_bytes(std::string_view text) { return {text.begin(), text.end()}; }

class C10dStore final : public RankStore {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  // The store of torch's backend "fake" lacks these operations.
  bool can_decide() override {
    try {
      store_->add("telens/begin/tried", 1);
      store_->compareSet("telens/begin/can_decide", "", "yes");
    } catch (const c10::DistError&) {
      throw;
    } catch (const std::exception&) {
      return false;
    }
    return true;
  }

  bool has(const std::string& key) override { return store_->check({key}); }
  std::string get(const std::string& key) override { return store_->get_to_str(key); }
  void set(const std::string& key, std::string_view value) override {
    store_->set(key, to_bytes(value));
  }
  void remove(const std::string& key) override { store_->deleteKey(key); }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return store_->add(key, amount);
  }
  void set_if_missing(const std::string& key, std::string_view value) override {
    store_->compareSet(key, "", std::string(value));
  }
  WeakStore get_weak() override {
    return [weak = c10::weak_intrusive_ptr<c10d::Store>(store_)]() -> std::shared_ptr<RankStore> {
      auto alive = weak.lock();
      return alive ? std::make_shared<C10dStore>(std::move(alive)) : nullptr;
    };
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

// Never destroyed: groups may be used while the process exits.
std::deque<std::size_t>& find_exchange_sizes(c10d::ProcessGroup& group) {
  static std::mutex mutex;
  static auto& all = *new StateByGroup<std::deque<std::size_t>>;
  const std::lock_guard lock(mutex);
  return all.of(group);
}

class C10dGroup final : public RankGroup {
 public:
  explicit C10dGroup(c10::intrusive_ptr<c10d::ProcessGroup> group) : group_(std::move(group)) {}

  int rank() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }
  std::string name() const override { return group_->getGroupName(); }
  std::string description() const override { return group_->getGroupDesc(); }

  // The list is equal on all ranks of the group.
  std::string members() const override {
    for (const c10::Device device : group_->getDeviceTypes()) {
      try {
        const auto options = group_->getBackend(device.type())->getBackendOptions();
        if (options && !options->global_ranks_in_group.empty()) {
          return fmt::format("{}", fmt::join(options->global_ranks_in_group, ","));
        }
      } catch (const std::exception&) {  // a backend without options
      }
    }
    return "-";
  }

  void gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    // A group with only NCCL does not accept CPU tensors.
    const std::vector<c10::Device> devices = group_->getDeviceTypes();
    const bool accepts_cpu =
        devices.empty() || std::ranges::any_of(devices, [](c10::Device device) {
          return device.type() == c10::DeviceType::CPU;
        });
    const c10::Device device = accepts_cpu ? c10::Device(c10::kCPU) : devices.front();
    const auto size = static_cast<std::int64_t>(own.size());
    at::Tensor packed = at::empty({size}, at::kByte);
    if (size > 0) std::memcpy(packed.mutable_data_ptr(), own.data(), own.size());

    std::vector<at::Tensor> inputs{packed.to(device)};
    std::vector<std::vector<at::Tensor>> outputs(1);
    for (int rank = 0; rank < group_->getSize(); ++rank) {
      outputs[0].push_back(at::empty({size}, inputs[0].options()));
    }
    group_->allgather(outputs, inputs)->wait();
    for (std::size_t rank = 0; rank < outputs[0].size() && size > 0; ++rank) {
      const at::Tensor host = outputs[0][rank].cpu();
      std::memcpy(all.data() + rank * own.size(), host.const_data_ptr(), own.size());
    }
  }

  std::shared_ptr<RankStore> store() override {
    auto store = group_->getStore();
    return store ? std::make_shared<C10dStore>(std::move(store)) : nullptr;
  }

  std::chrono::milliseconds time_limit() const override { return find_time_limit(*group_); }

  // torch.distributed registers its groups by name in this process.
  RankGroupPtr find(const std::string& name) override {
    try {
      return std::make_shared<C10dGroup>(c10d::resolve_process_group(name));
    } catch (const std::exception&) {
      return nullptr;
    }
  }

  std::deque<std::size_t>& exchange_sizes() override { return find_exchange_sizes(*group_); }

  c10d::ProcessGroup* process_group() const { return group_.get(); }

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

}  // namespace

RankGroupPtr to_rank_group(c10d::ProcessGroup* group) {
  if (group == nullptr) return nullptr;
  return std::make_shared<C10dGroup>(
      c10::intrusive_ptr<c10d::ProcessGroup>::unsafe_reclaim_from_nonowning(group));
}

c10d::ProcessGroup* find_process_group(const RankGroupPtr& group) {
  const auto* wrapped = dynamic_cast<const C10dGroup*>(group.get());
  return wrapped ? wrapped->process_group() : nullptr;
}

namespace debug {

ReductionGroup::ReductionGroup(const std::shared_ptr<c10d::ProcessGroup>& group)
    : RankGroupPtr(to_rank_group(group.get())) {}

}  // namespace debug

// ---- collectives of parallel layers

struct CollectiveObservation::Watch final : CollectiveWatch {
  explicit Watch(std::shared_ptr<CollectiveObserver> of) : observer(std::move(of)) {}

  OnResult begin(const CollectiveCall& call) override {
    CollectiveObserver::OnResult on_result =
        observer->begin({call.kind, call.sent, to_rank_group(call.group.get()), call.rows});
    if (!on_result) return {};
    return [on_result = std::move(on_result)](const at::Tensor& result) { on_result(result); };
  }

  const std::shared_ptr<CollectiveObserver> observer;
};

CollectiveObservation::CollectiveObservation(std::shared_ptr<CollectiveObserver> observer)
    : watch_(std::make_shared<Watch>(std::move(observer))) {
  collective_watches::add(watch_);
}

CollectiveObservation::~CollectiveObservation() { end(); }

void CollectiveObservation::end() {
  if (!watch_) return;
  collective_watches::remove(watch_);
  watch_.reset();
}

}  // namespace telens
