#include "inference/server/metrics.h"

#include <algorithm>
#include <cstdio>

namespace hero {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

void head(std::string& out, const std::string& name, const char* type, const char* help) {
  out += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
}

void whole(std::string& out, const std::string& name, const char* type, const char* help, uint64_t value) {
  head(out, name, type, help);
  out += name + " " + std::to_string(value) + "\n";
}

}  // namespace

ServeMetrics::ServeMetrics()
    : first_token_({0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}),
      next_token_({0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5}),
      batch_({1, 2, 4, 8, 16, 32, 64, 128, 256}),
      scored_({1, 2, 4, 8, 16, 32, 64, 128, 256}) {}

void ServeMetrics::Histogram::add(double value) {
  ++counts[static_cast<size_t>(std::ranges::lower_bound(bounds, value) - bounds.begin())];
  sum += value;
}

void ServeMetrics::count_request(const std::string& endpoint, int status) {
  const std::lock_guard lock(mutex_);
  ++requests_[{endpoint, status}];
}

void ServeMetrics::count_tokens(int64_t prompt, int64_t generated) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += static_cast<uint64_t>(prompt);
  generated_tokens_ += static_cast<uint64_t>(generated);
}

void ServeMetrics::count_cancelled() {
  const std::lock_guard lock(mutex_);
  ++cancelled_;
}

void ServeMetrics::set_load(uint64_t waiting_requests, uint64_t running_texts) {
  const std::lock_guard lock(mutex_);
  waiting_ = waiting_requests;
  running_ = running_texts;
}

void ServeMetrics::observe_first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  first_token_.add(seconds);
}

void ServeMetrics::observe_next_token(double seconds) {
  const std::lock_guard lock(mutex_);
  next_token_.add(seconds);
}

void ServeMetrics::observe_batch(int64_t texts) {
  const std::lock_guard lock(mutex_);
  batch_.add(static_cast<double>(texts));
}

void ServeMetrics::observe_scored(int64_t prompts) {
  const std::lock_guard lock(mutex_);
  scored_.add(static_cast<double>(prompts));
}

std::string ServeMetrics::text() const {
  const std::lock_guard lock(mutex_);
  std::string out;
  head(out, "hero_requests_total", "counter", "Requests answered, by endpoint and HTTP status.");
  for (const auto& [key, count] : requests_) {
    out += "hero_requests_total{endpoint=\"" + key.first + "\",status=\"" + std::to_string(key.second) +
           "\"} " + std::to_string(count) + "\n";
  }
  whole(out, "hero_prompt_tokens_total", "counter", "Tokens of prompts that were read.", prompt_tokens_);
  whole(out, "hero_generated_tokens_total", "counter", "Tokens that were made.", generated_tokens_);
  whole(out, "hero_cancelled_requests_total", "counter", "Requests whose client went away.", cancelled_);
  whole(out, "hero_queue_length", "gauge", "Requests that wait for their first step.", waiting_);
  whole(out, "hero_running_texts", "gauge", "Texts in the making.", running_);
  const auto histogram = [&](const std::string& name, const char* help, const Histogram& h) {
    head(out, name, "histogram", help);
    uint64_t below = 0;
    for (size_t i = 0; i < h.counts.size(); ++i) {
      below += h.counts[i];
      const std::string bound = i < h.bounds.size() ? number(h.bounds[i]) : "+Inf";
      out += name + "_bucket{le=\"" + bound + "\"} " + std::to_string(below) + "\n";
    }
    out += name + "_sum " + number(h.sum) + "\n" + name + "_count " + std::to_string(below) + "\n";
  };
  histogram("hero_time_to_first_token_seconds", "From a request's arrival to its first token.", first_token_);
  histogram("hero_time_per_token_seconds", "Between two tokens of a text.", next_token_);
  histogram("hero_batch_size", "Texts that made a token together.", batch_);
  histogram("hero_scored_batch_size", "Prompts that were scored together.", scored_);
  return out;
}

}  // namespace hero
