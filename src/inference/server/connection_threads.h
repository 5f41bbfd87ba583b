#pragma once
// A thread pool for connections. Included by http.cpp only, which has the compile options of cpp-httplib.
#include <httplib.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <utility>

namespace hero {

/// A thread pool. While all threads are busy, it runs a connection's task on the accepting thread, where
/// `overflowing` is true: the task must not wait.
class ConnectionThreads : public httplib::TaskQueue {
 public:
  explicit ConnectionThreads(size_t threads) : threads_(threads), pool_(threads) {}

  static bool overflowing() { return overflowing_; }

  void enqueue(std::function<void()> serve) override {
    if (busy_ >= threads_) {
      overflowing_ = true;
      serve();
      overflowing_ = false;
      return;
    }
    ++busy_;
    pool_.enqueue([this, serve = std::move(serve)] {
      serve();
      --busy_;
    });
  }
  void shutdown() override { pool_.shutdown(); }

 private:
  static inline thread_local bool overflowing_ = false;

  const size_t threads_;
  std::atomic<size_t> busy_ = 0;
  httplib::ThreadPool pool_;
};

}  // namespace hero
