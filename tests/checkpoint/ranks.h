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

/// Where ranks that are threads of one process leave words for one another.
class Board {
 public:
  Voices voices(int64_t rank, int64_t size) {
    return {rank, size, [this](const std::string& key, const std::string& value) { tell(key, value); },
            [this](const std::string& key) { return hear(key); }};
  }

  void tell(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    if (!words_.emplace(key, value).second) throw std::logic_error("told twice: " + key);
    told_.notify_all();
  }

  std::string hear(const std::string& key) {
    std::unique_lock lock(mutex_);
    told_.wait(lock, [&] { return words_.contains(key) || key.ends_with(silent_); });
    if (key.ends_with(silent_)) throw RunError("no word under " + key);
    return words_.at(key);
  }

  /// Whoever listens to keys that end so gives up.
  void silence(const std::string& end) {
    const std::lock_guard lock(mutex_);
    silent_ = end;
    told_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable told_;
  std::map<std::string, std::string> words_;
  std::string silent_ = "nobody";
};

/// Runs work(rank) for all ranks at once. Returns what each threw, "" where nothing.
inline std::vector<std::string> in_ranks(int64_t size, const std::function<void(int64_t rank)>& work) {
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
