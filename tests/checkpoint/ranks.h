#pragma once
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/writer.h"
#include "io/error.h"

namespace hero::test {

/// A store for ranks that are threads of one process.
class InMemoryStore {
 public:
  StoreClient client(int64_t rank, int64_t world_size) {
    return {rank, world_size, [this](const std::string& key, const std::string& value) { set(key, value); },
            [this](const std::string& key) { return get(key); }};
  }

  void set(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    if (!values_.emplace(key, value).second) throw std::logic_error("set twice: " + key);
    changed_.notify_all();
  }

  std::string get(const std::string& key) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return values_.contains(key) || key.ends_with(failing_suffix_); });
    if (key.ends_with(failing_suffix_)) throw RunError("timeout on key " + key);
    return values_.at(key);
  }

  /// get() fails for keys with this suffix.
  void fail_keys(const std::string& suffix) {
    const std::lock_guard lock(mutex_);
    failing_suffix_ = suffix;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::string failing_suffix_ = "(none)";
};

/// Runs work(rank) concurrently for all ranks. Returns the error message of each, "" on success.
inline std::vector<std::string> run_ranks(int64_t size, const std::function<void(int64_t rank)>& work) {
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        work(rank);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

}  // namespace hero::test
