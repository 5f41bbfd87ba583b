#include "inference/server/answer.h"

namespace hero {

std::vector<Event> Answer::wait(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  // Without a stream the reader has use for the whole answer only.
  changed_.wait_for(lock, patience,
                    [this] { return error_ || unfinished_ == 0 || (stream_ && !events_.empty()); });
  if (error_) std::rethrow_exception(error_);
  return std::exchange(events_, {});
}

bool Answer::done() const {
  const std::lock_guard lock(mutex_);
  return unfinished_ == 0 && events_.empty();
}

void Answer::push(Event event) {
  const std::lock_guard lock(mutex_);
  const bool last = event.finish && --unfinished_ == 0;
  events_.push_back(std::move(event));
  if (last || stream_) changed_.notify_one();
}

void Answer::fail(const ApiError& error) {
  const std::lock_guard lock(mutex_);
  error_ = std::make_exception_ptr(error);
  changed_.notify_one();
}

}  // namespace hero
