#include "inference/server/request_output.h"

namespace hero {

void SequenceOutput::append(SequenceOutput next) {
  sequence = next.sequence;
  text += next.text;
  if (next.prompt) prompt = std::move(next.prompt);
  tokens.append(std::move(next.tokens));
  num_generated += next.num_generated;
  finish_reason = next.finish_reason;
}

std::vector<SequenceOutput> RequestOutput::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  // Without streaming, wake the reader only for the complete output.
  changed_.wait_for(lock, timeout,
                    [this] { return error_ || unfinished_ == 0 || (stream_ && !outputs_.empty()); });
  if (error_) std::rethrow_exception(error_);
  std::vector<SequenceOutput> outputs;
  outputs.reserve(outputs_.size());
  for (auto& [sequence, output] : outputs_) outputs.push_back(std::move(output));
  outputs_.clear();
  return outputs;
}

bool RequestOutput::done() const {
  const std::lock_guard lock(mutex_);
  return unfinished_ == 0 && outputs_.empty();
}

void RequestOutput::push(SequenceOutput output) {
  const std::lock_guard lock(mutex_);
  const bool last = output.finish_reason && --unfinished_ == 0;
  outputs_[output.sequence].append(std::move(output));
  if (last || stream_) changed_.notify_one();
}

void RequestOutput::fail(const ApiError& error) {
  const std::lock_guard lock(mutex_);
  error_ = std::make_exception_ptr(error);
  changed_.notify_one();
}

}  // namespace hero
