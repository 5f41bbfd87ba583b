#pragma once
// Metrics of the server, in Prometheus text format 0.0.4. Thread-safe.
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace hero {

class ServeMetrics {
 public:
  ServeMetrics();

  void count_request(const std::string& endpoint, int status);
  void count_tokens(int64_t prompt, int64_t generated);
  void count_cancelled();
  void set_load(uint64_t waiting_requests, uint64_t running_sequences);
  void observe_first_token(double seconds);
  void observe_next_token(double seconds);
  void observe_batch(int64_t sequences);  ///< a decode step
  void observe_scored(int64_t prompts);   ///< a scoring pass

  std::string text() const;

 private:
  struct Histogram {
    explicit Histogram(std::vector<double> b) : bounds(std::move(b)), counts(bounds.size() + 1) {}
    void add(double value);
    std::vector<double> bounds;    // upper, inclusive, ascending; infinity follows
    std::vector<uint64_t> counts;  // per bucket
    double sum = 0;
  };

  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, uint64_t> requests_;
  uint64_t prompt_tokens_ = 0, generated_tokens_ = 0, cancelled_ = 0, waiting_ = 0, running_ = 0;
  Histogram first_token_, next_token_, batch_, scored_;
};

}  // namespace hero
