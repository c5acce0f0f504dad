// The connections of a server: some are served, some more wait, and all can be ended at once.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace telens::cli {

class Connections {
 public:
  // Serves what comes over a socket. Called by several threads; returns soon after its socket is
  // shut down.
  using Serve = std::function<void(int socket)>;

  explicit Connections(Serve serve);
  // Shuts down those that are served, closes those that wait, and is there when all are done.
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  // Takes the socket: it is served as soon as a thread is free, and closed. Closes it unserved
  // where too many wait.
  void add(int socket);

 private:
  void work();

  Serve serve_;
  std::mutex mutex_;  // over what follows
  std::condition_variable news_;
  std::deque<int> waiting_;
  std::set<int> served_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace telens::cli
