#include "inference/server/metrics.h"

#include <algorithm>
#include <cstdio>

namespace hero {
namespace {

std::string format_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

void write_header(std::string& out, const std::string& name, const char* type, const char* help) {
  out += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
}

void write_metric(std::string& out, const std::string& name, const char* type, const char* help,
                  uint64_t value) {
  write_header(out, name, type, help);
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

void ServeMetrics::set_load(uint64_t waiting_requests, uint64_t running_sequences) {
  const std::lock_guard lock(mutex_);
  waiting_ = waiting_requests;
  running_ = running_sequences;
}

void ServeMetrics::observe_first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  first_token_.add(seconds);
}

void ServeMetrics::observe_next_token(double seconds) {
  const std::lock_guard lock(mutex_);
  next_token_.add(seconds);
}

void ServeMetrics::observe_batch(int64_t sequences) {
  const std::lock_guard lock(mutex_);
  batch_.add(static_cast<double>(sequences));
}

void ServeMetrics::observe_scored(int64_t prompts) {
  const std::lock_guard lock(mutex_);
  scored_.add(static_cast<double>(prompts));
}

std::string ServeMetrics::text() const {
  const std::lock_guard lock(mutex_);
  std::string out;
  write_header(out, "hero_requests_total", "counter", "Completed requests, by endpoint and HTTP status.");
  for (const auto& [key, count] : requests_) {
    out += "hero_requests_total{endpoint=\"" + key.first + "\",status=\"" + std::to_string(key.second) +
           "\"} " + std::to_string(count) + "\n";
  }
  write_metric(out, "hero_prompt_tokens_total", "counter", "Processed prompt tokens.", prompt_tokens_);
  write_metric(out, "hero_generated_tokens_total", "counter", "Generated tokens.", generated_tokens_);
  write_metric(out, "hero_cancelled_requests_total", "counter", "Requests whose client disconnected.",
               cancelled_);
  write_metric(out, "hero_queue_length", "gauge", "Requests waiting for their first step.", waiting_);
  write_metric(out, "hero_running_texts", "gauge", "Active sequences.", running_);
  const auto histogram = [&](const std::string& name, const char* help, const Histogram& h) {
    write_header(out, name, "histogram", help);
    uint64_t cumulative = 0;
    for (size_t i = 0; i < h.counts.size(); ++i) {
      cumulative += h.counts[i];
      const std::string bound = i < h.bounds.size() ? format_number(h.bounds[i]) : "+Inf";
      out += name + "_bucket{le=\"" + bound + "\"} " + std::to_string(cumulative) + "\n";
    }
    out += name + "_sum " + format_number(h.sum) + "\n";
    out += name + "_count " + std::to_string(cumulative) + "\n";
  };
  histogram("hero_time_to_first_token_seconds", "Time from arrival to first token of a request.",
            first_token_);
  histogram("hero_time_per_token_seconds", "Time between two tokens of a sequence.", next_token_);
  histogram("hero_batch_size", "Sequences per decode step.", batch_);
  histogram("hero_scored_batch_size", "Prompts per scoring pass.", scored_);
  return out;
}

}  // namespace hero
