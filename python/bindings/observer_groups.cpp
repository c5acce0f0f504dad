// Process groups of telens._observer: telens.debug.rank_group implements them with
// torch.distributed.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>

#include "hooks/libtorch/c10d_group.h"
#include "hooks/stable_abi/process_group.h"
#include "python/bindings/distributed.h"
#include "python/bindings/gil.h"

namespace telens::python {

namespace py = pybind11;

namespace {

py::bytes to_bytes(std::string_view text) { return py::bytes(text.data(), text.size()); }

class PythonStore final : public RankStore {
 public:
  explicit PythonStore(py::object store) : store_(share(std::move(store))) {}

  bool can_decide() override {
    const WithGil gil;
    return store_->attr("can_decide")().cast<bool>();
  }
  bool has(const std::string& key) override {
    const WithGil gil;
    return store_->attr("has")(key).cast<bool>();
  }
  std::string get(const std::string& key) override {
    const WithGil gil;
    return store_->attr("get")(key).cast<std::string>();
  }
  void set(const std::string& key, std::string_view value) override {
    const WithGil gil;
    store_->attr("set")(key, to_bytes(value));
  }
  void remove(const std::string& key) override {
    const WithGil gil;
    store_->attr("remove")(key);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    const WithGil gil;
    return store_->attr("add")(key, amount).cast<std::int64_t>();
  }
  void set_if_missing(const std::string& key, std::string_view value) override {
    const WithGil gil;
    store_->attr("set_if_missing")(key, to_bytes(value));
  }
  WeakStore get_weak() override {
    const WithGil gil;
    return [weak = share(store_->attr("get_weak")())]() -> std::shared_ptr<RankStore> {
      const WithGil held;
      py::object store = (*weak)();
      return store.is_none() ? nullptr : std::make_shared<PythonStore>(std::move(store));
    };
  }

 private:
  GilObject store_;
};

using Sizes = std::deque<std::size_t>;

class PythonGroup final : public RankGroup {
 public:
  explicit PythonGroup(py::object group) : group_(share(std::move(group))) {}

  int rank() const override {
    const WithGil gil;
    return group_->attr("rank")().cast<int>();
  }
  int size() const override {
    const WithGil gil;
    return group_->attr("size")().cast<int>();
  }
  std::string name() const override { return get_text("name"); }
  std::string description() const override { return get_text("description"); }
  std::string members() const override { return get_text("members"); }

  void gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    const WithGil gil;
    const py::bytes sent(reinterpret_cast<const char*>(own.data()), own.size());
    const auto received = group_->attr("gather")(sent).cast<std::string>();
    if (received.size() != all.size()) {
      raise<InternalError>("gathered {} bytes; expected {}", received.size(), all.size());
    }
    std::memcpy(all.data(), received.data(), received.size());
  }

  std::shared_ptr<RankStore> store() override {
    const WithGil gil;
    py::object store = group_->attr("store")();
    return store.is_none() ? nullptr : std::make_shared<PythonStore>(std::move(store));
  }

  std::chrono::milliseconds time_limit() const override {
    const WithGil gil;
    return std::chrono::milliseconds(group_->attr("time_limit")().cast<std::int64_t>());
  }

  RankGroupPtr find(const std::string& name) override {
    const WithGil gil;
    py::object found = group_->attr("find")(name);
    return found.is_none() ? nullptr : std::make_shared<PythonGroup>(std::move(found));
  }

  std::deque<std::size_t>& exchange_sizes() override {
    constexpr const char* kKey = "exchange_sizes";
    const WithGil gil;
    const py::dict state = group_->attr("state")();
    if (!state.contains(kKey)) {
      state[kKey] = py::capsule(new Sizes, [](void* sizes) { delete static_cast<Sizes*>(sizes); });
    }
    return *static_cast<Sizes*>(state[kKey].cast<py::capsule>().get_pointer());
  }

  py::object process_group() const { return group_->attr("process_group"); }

 private:
  std::string get_text(const char* method) const {
    const WithGil gil;
    return group_->attr(method)().cast<std::string>();
  }

  GilObject group_;
};

}  // namespace

ProcessGroupPtr to_process_group(const py::object& group, const char* argument) {
  if (group.is_none()) return nullptr;
  py::object ranks =
      py::module_::import("telens.debug.rank_group").attr("to_rank_group")(group, argument);
  return std::make_shared<c10d::ProcessGroup>(std::make_shared<PythonGroup>(std::move(ranks)));
}

py::object from_process_group(c10d::ProcessGroup* group) {
  if (group == nullptr) return py::none();
  const auto* ranks = dynamic_cast<const PythonGroup*>(group->ranks().get());
  return ranks == nullptr ? py::object(py::none()) : ranks->process_group();
}

}  // namespace telens::python

namespace telens {

c10d::ProcessGroup* find_process_group(const RankGroupPtr& group) {
  if (!group) return nullptr;
  // Python reads it before the next call.
  static thread_local std::shared_ptr<c10d::ProcessGroup> found;
  found = std::make_shared<c10d::ProcessGroup>(group);
  return found.get();
}

}  // namespace telens
