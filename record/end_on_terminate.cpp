#include "record/end_on_terminate.h"

#include <cxxabi.h>
#include <fmt/format.h>
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <typeinfo>
#include <utility>

namespace telens::record {

struct TerminateHandlers {
  std::mutex mutex;
  std::set<EndOnTerminate*> all;
  std::terminate_handler previous = nullptr;

  void call(const std::string& exception) {
    const std::scoped_lock lock(mutex);
    for (EndOnTerminate* each : all) {
      if (each->owner_ == ::getpid()) each->end_(exception);
    }
  }
};

namespace {

constexpr std::chrono::seconds kEndTimeout{5};

TerminateHandlers& ends() {
  static auto* const ends = new TerminateHandlers;  // outlives static objects
  return *ends;
}

std::string name_of_current_exception() {
  const std::type_info* const type = abi::__cxa_current_exception_type();
  if (type == nullptr) return "std::terminate";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(type->name(), nullptr, nullptr, &status), &std::free);
  const std::string readable = name ? name.get() : type->name();
  try {
    std::rethrow_exception(std::current_exception());
  } catch (const std::exception& error) {
    return fmt::format("{}: {}", readable, error.what());
  } catch (...) {
    return readable;
  }
}

[[noreturn]] void handle_terminate() {
  static std::atomic<bool> entered = false;
  if (!entered.exchange(true)) {
    try {
      const auto done = std::make_shared<std::promise<void>>();
      std::thread([done, exception = name_of_current_exception()] {
        ends().call(exception);
        done->set_value();
      }).detach();
      done->get_future().wait_for(kEndTimeout);
    } catch (...) {
      // No thread can be started: the file stays open, as after a kill.
    }
  }
  if (ends().previous != nullptr) ends().previous();
  std::abort();
}

}  // namespace

EndOnTerminate::EndOnTerminate(End end) : end_(std::move(end)), owner_(::getpid()) {
  static std::once_flag first;
  std::call_once(first, [] { ends().previous = std::set_terminate(handle_terminate); });
  const std::scoped_lock lock(ends().mutex);
  ends().all.insert(this);
}

EndOnTerminate::~EndOnTerminate() {
  const std::scoped_lock lock(ends().mutex);
  ends().all.erase(this);
}

}  // namespace telens::record
