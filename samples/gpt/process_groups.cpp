// ProcessGroupGloo.hpp of torch's package includes gloo's headers, which the package lacks. The
// headers of another gloo version work, because this file uses gloo's types only through pointers
// and creates no objects of them.
#include "process_groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/base/error.h"
#include "core/distributed/process_group.h"
#include "nccl_backend.h"

namespace gpt {
namespace {

using Gloo = c10d::ProcessGroupGloo;
using Kind = c10d::ProcessGroup::BackendType;

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    telens::raise<telens::UsageError>(
        "several ranks meet at MASTER_ADDR:MASTER_PORT, and the environment variable {} is not "
        "set; start them with torchrun --no-python --nproc-per-node N, which sets it",
        name);
  }
  return value;
}

std::uint16_t port_from_environment() {
  const std::string text = from_environment("MASTER_PORT");
  std::uint16_t port = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, port);
  if (read.ec != std::errc() || read.ptr != end) {
    telens::raise<telens::UsageError>("MASTER_PORT is '{}'; expected a port, 1 to 65535", text);
  }
  return port;
}

// Connects to the store, which torchrun's agent serves if there is one, else rank 0.
c10::intrusive_ptr<c10d::Store> meet(int rank, int ranks) {
  const std::string host = from_environment("MASTER_ADDR");
  const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  const bool has_agent = agent != nullptr && std::string_view(agent) == "True";
  c10d::TCPStoreOptions options;
  options.port = port_from_environment();
  options.isServer = rank == 0 && !has_agent;
  options.numWorkers = ranks;
  // A restart by torchrun may find keys of the first attempt.
  const char* attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
  try {
    return c10::make_intrusive<c10d::PrefixStore>(
        fmt::format("gpt/{}", attempt == nullptr ? "0" : attempt),
        c10::make_intrusive<c10d::TCPStore>(host, options));
  } catch (const c10::Error& error) {
    telens::raise("rank {} of {} did not meet the others at {}:{}: {}", rank, ranks, host,
                  options.port, error.what_without_backtrace());
  }
}

c10::intrusive_ptr<Gloo> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int size, const GroupOptions& options) {
  const auto of_backend = Gloo::Options::create(options.timeout);
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");  // as in torch.distributed
  of_backend->devices.push_back(interface != nullptr ? Gloo::createDeviceForInterface(interface)
                                                     : Gloo::createDefaultDevice());
  of_backend->global_ranks_in_group = options.ranks;
  of_backend->group_name = options.description;
  return c10::make_intrusive<Gloo>(store, rank, size, of_backend);
}

// Creates the group: its backends, its name on all ranks, and its entry in torch's registry.
telens::ProcessGroupPtr make_in(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                const GroupOptions& options) {
  const std::string name = fmt::format("{}:{}", options.description, fmt::join(options.ranks, "-"));
  const auto size = static_cast<int>(options.ranks.size());
  const auto own = c10::make_intrusive<c10d::PrefixStore>(name, store);
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(own, rank, size);
  const auto gloo =
      make_gloo_backend(c10::make_intrusive<c10d::PrefixStore>("cpu", own), rank, size, options);
  group->setBackend(c10::DeviceType::CPU, Kind::GLOO, gloo);
  group->setDefaultBackend(Kind::GLOO);
  if (options.device.is_cuda()) {
    const auto nccl =
        make_nccl_backend(c10::make_intrusive<c10d::PrefixStore>("cuda", own), rank, size, options);
    if (nccl) {
      group->setBackend(c10::DeviceType::CUDA, Kind::NCCL, nccl);
    } else {
      group->setBackend(c10::DeviceType::CUDA, Kind::GLOO, gloo);
    }
  }
  group->setGroupName(name);
  group->setGroupDesc(options.description);
  c10d::register_process_group(name, group);
  return telens::share(group.get());
}

}  // namespace

telens::ProcessGroupPtr join_world(int rank, int ranks, const at::Device& device) {
  GroupOptions options{.ranks = {}, .description = "world", .device = device};
  for (int each = 0; each < ranks; ++each) options.ranks.push_back(each);
  return make_in(meet(rank, ranks), rank, options);
}

telens::ProcessGroupPtr make_group(const telens::ProcessGroupPtr& world,
                                   const GroupOptions& options) {
  const auto place = std::ranges::find(options.ranks, static_cast<std::uint64_t>(world->getRank()));
  return make_in(world->getStore(), static_cast<int>(place - options.ranks.begin()), options);
}

void sum_over(const telens::ProcessGroupPtr& group, at::Tensor tensor) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  group->allreduce(tensors)->wait();
}

void wait_for_all(const telens::ProcessGroupPtr& group) { group->barrier()->wait(); }

}  // namespace gpt
