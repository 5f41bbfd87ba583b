#pragma once
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace hero {

/// Runs `out = work(in, worker)` for the items of `next(in) -> bool` on `workers` threads and calls
/// `consume(out)` in item order on the calling thread. At most four items per worker are in flight. The error
/// of the first failed item is rethrown after all earlier items are consumed.
template <typename In, typename Out, typename Next, typename Work, typename Consume>
void ordered_parallel(int workers, Next next, Work work, Consume consume) {
  struct Slot {
    In in;
    Out out;
    std::exception_ptr error;
    bool done = false;
  };
  std::mutex mutex;
  std::condition_variable waiting, finished;
  std::deque<std::shared_ptr<Slot>> queue;
  bool stop = false;

  std::vector<std::thread> threads;
  const auto join = [&] {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    waiting.notify_all();
    for (auto& thread : threads) thread.join();
  };
  const auto loop = [&](int worker) {
    for (;;) {
      std::shared_ptr<Slot> slot;
      {
        std::unique_lock lock(mutex);
        waiting.wait(lock, [&] { return stop || !queue.empty(); });
        if (stop) return;
        slot = queue.front();
        queue.pop_front();
      }
      try {
        slot->out = work(slot->in, worker);
      } catch (...) {
        slot->error = std::current_exception();
      }
      slot->in = In();
      std::lock_guard lock(mutex);
      slot->done = true;
      finished.notify_all();
    }
  };

  try {
    for (int worker = 0; worker < workers; ++worker) threads.emplace_back(loop, worker);
    std::deque<std::shared_ptr<Slot>> in_flight;
    std::exception_ptr reader_error;
    bool more = true;
    while (more || !in_flight.empty()) {
      while (more && in_flight.size() < 4 * static_cast<std::size_t>(workers)) {
        auto slot = std::make_shared<Slot>();
        try {
          more = next(slot->in);
        } catch (...) {
          reader_error = std::current_exception();
          more = false;
        }
        if (!more) break;
        in_flight.push_back(slot);
        std::lock_guard lock(mutex);
        queue.push_back(slot);
        waiting.notify_one();
      }
      if (in_flight.empty()) break;
      const auto slot = in_flight.front();
      in_flight.pop_front();
      {
        std::unique_lock lock(mutex);
        finished.wait(lock, [&] { return slot->done; });
      }
      if (slot->error) std::rethrow_exception(slot->error);
      consume(slot->out);
    }
    if (reader_error) std::rethrow_exception(reader_error);
  } catch (...) {
    join();
    throw;
  }
  join();
}

}  // namespace hero
