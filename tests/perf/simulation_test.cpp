#include "perf/simulation.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <queue>
#include <thread>
#include <tuple>

#include "perf/schedule_drawing.h"

namespace hero {
namespace simulation_test {

// Costs for which all sums are exact.
PipelineCosts equal_costs(int64_t chunks, double forward = 1, double input = 1, double weight = 1) {
  return {.forward = std::vector<double>(chunks, forward),
          .input_gradient = std::vector<double>(chunks, input),
          .weight_gradient = std::vector<double>(chunks, weight),
          .activations = std::vector<double>(chunks, 0),
          .gradients = std::vector<double>(chunks, 0)};
}

// Hand-computed with F = 1 s and B = 2 s.
//   rank 0: F0 0-1, F1 1-2, B0 4-6, F2 6-7, B1 7-9, F3 9-10, B2 10-12, B3 13-15
//   rank 1: F0 1-2, B0 2-4, F1 4-5, B1 5-7, F2 7-8, B2 8-10, F3 10-11, B3 11-13
TEST(Simulation, TwoRanksFourMicroBatches) {
  const auto found = simulate(make_schedule(PipelineSchedule::k1F1B, 2, 1, 4), equal_costs(2));
  const double starts[2][8] = {{0, 1, 4, 6, 7, 9, 10, 13}, {1, 2, 4, 5, 7, 8, 10, 11}};
  for (int64_t rank = 0; rank < 2; ++rank) {
    for (int64_t i = 0; i < 8; ++i)
      EXPECT_EQ(found.spans[rank][i].start, starts[rank][i]) << rank << " " << i;
  }
  EXPECT_EQ(found.seconds, 15);
  EXPECT_EQ(found.busy, (std::vector<double>{12, 12}));
  EXPECT_DOUBLE_EQ(found.bubble(0), 0.2);  // (p-1) / (m+p-1)
  // Input gradients are sent one second earlier: 12 + (p-1) (1 + 1 - 1).
  EXPECT_EQ(simulate(make_schedule(PipelineSchedule::kZeroBubble, 2, 1, 4), equal_costs(2)).seconds, 13);
}

TEST(Simulation, MessagesOnALinkAreSerialized) {
  PipelineCosts costs = equal_costs(2);
  costs.forward[1] = 0.25;
  costs.input_gradient[1] = costs.weight_gradient[1] = 0.125;
  costs.activations = {30, 0};
  costs.gradients = {0, 10};
  costs.latency = 0.5;
  costs.bandwidth = 10;
  const auto found = simulate(make_schedule(PipelineSchedule::k1F1B, 2, 1, 2), costs);
  // Rank 0 finishes 0F0 at 1 and 0F1 at 2. The messages arrive at 1 + 3 + 0.5 and, because the link is busy
  // until 4, at 4 + 3 + 0.5. 1B0 ends at 4.5 + 0.5: its gradient arrives at 5 + 1 + 0.5.
  EXPECT_EQ(found.spans[1][0].start, 4.5);
  EXPECT_EQ(found.spans[0][2].start, 6.5);
  EXPECT_EQ(found.spans[1][2].start, 7.5);
}

TEST(Simulation, BubblesMatchFormulas) {
  for (int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (const int64_t micro_batches : {ranks, 2 * ranks, 5 * ranks}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(micro_batches) + " micro-batches");
      for (const auto kind : {PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble}) {
        const auto found = simulate(make_schedule(kind, ranks, 1, micro_batches), equal_costs(ranks));
        for (int64_t rank = 0; rank < ranks; ++rank)
          EXPECT_NEAR(found.bubble(rank), ideal_bubble(kind, ranks, 1, micro_batches), 1e-12)
              << name_of(kind);
      }
      for (int64_t chunks = 1; chunks <= 4; ++chunks) {
        const auto found =
            simulate(make_schedule(PipelineSchedule::kInterleaved, ranks, chunks, micro_batches),
                     equal_costs(ranks * chunks));
        EXPECT_NEAR(found.bubble(0),
                    ideal_bubble(PipelineSchedule::kInterleaved, ranks, chunks, micro_batches), 1e-12)
            << chunks;
      }
    }
  }
}

// arXiv 2401.10241, table 2: the step without bubbles plus p-1 times F + I - W (ZB-H1), F + I + W (1F1B).
TEST(Simulation, ZeroBubbleWithUnequalPasses) {
  for (int64_t ranks = 2; ranks <= 8; ++ranks) {
    const int64_t m = 3 * ranks;
    const auto costs = equal_costs(ranks, 4, 5, 3);
    const auto p = static_cast<double>(ranks - 1), all = static_cast<double>(m) * 12;
    EXPECT_EQ(simulate(make_schedule(PipelineSchedule::kZeroBubble, ranks, 1, m), costs).seconds,
              all + p * (4 + 5 - 3));
    EXPECT_EQ(simulate(make_schedule(PipelineSchedule::k1F1B, ranks, 1, m), costs).seconds, all + p * 12);
  }
}

// Executes a schedule with one thread per rank that sleeps instead of computing, with real messages.
class SleepingPipeline {
 public:
  SleepingPipeline(const Schedule& schedule, const PipelineCosts& costs)
      : schedule_(schedule), costs_(costs) {}

  double seconds() {
    const auto begin = Clock::now();
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < ranks(); ++rank) threads.emplace_back([this, rank] { work(rank); });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(wrong_messages_, 0);
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Message {
    int64_t chunk, micro_batch;
    Clock::time_point arrival;
  };

  int64_t ranks() const { return static_cast<int64_t>(schedule_.size()); }
  static Clock::duration span(double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  void work(int64_t rank) {
    const auto chunks = static_cast<int64_t>(costs_.forward.size());
    std::map<bool, Clock::time_point> sent;
    for (const auto& [pass, c, m] : schedule_[rank]) {
      const bool gradients = pass != Pass::forward;
      const int64_t before = c + (gradients ? 1 : -1), next = c + (gradients ? -1 : 1);
      if (pass != Pass::weight_gradient && before >= 0 && before < chunks) receive(before, gradients, c, m);
      const double input = costs_.input_gradient[c], weight = costs_.weight_gradient[c];
      std::this_thread::sleep_for(span(pass == Pass::forward           ? costs_.forward[c]
                                       : pass == Pass::backward        ? input + weight
                                       : pass == Pass::weight_gradient ? weight
                                                                       : input));
      if (pass == Pass::weight_gradient || next < 0 || next >= chunks) continue;
      const double bytes = gradients ? costs_.gradients[c] : costs_.activations[c];
      sent[gradients] = std::max(sent[gradients], Clock::now()) + span(bytes / costs_.bandwidth);
      const std::lock_guard lock(mutex_);
      queues_[{rank, next % ranks(), gradients}].push({next, m, sent[gradients] + span(costs_.latency)});
      changed_.notify_all();
    }
  }

  void receive(int64_t before, bool gradients, int64_t chunk, int64_t micro_batch) {
    std::unique_lock lock(mutex_);
    auto& queue = queues_[{before % ranks(), chunk % ranks(), gradients}];
    changed_.wait(lock, [&] { return !queue.empty(); });
    const Message message = queue.front();
    queue.pop();
    wrong_messages_ += message.chunk != chunk || message.micro_batch != micro_batch;
    lock.unlock();
    std::this_thread::sleep_until(message.arrival);
  }

  const Schedule& schedule_;
  const PipelineCosts& costs_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::tuple<int64_t, int64_t, bool>, std::queue<Message>> queues_;
  int wrong_messages_ = 0;
};

// Within 15%. A busy machine only delays threads, so the best of several tries counts.
TEST(Simulation, SleepingThreadsTakePredictedTime) {
  for (const auto& [kind, chunks] : {std::pair<PipelineSchedule, int64_t>{PipelineSchedule::k1F1B, 1},
                                     {PipelineSchedule::kInterleaved, 2},
                                     {PipelineSchedule::kZeroBubble, 1}}) {
    const auto schedule = make_schedule(kind, 4, chunks, 4);
    PipelineCosts costs = equal_costs(4 * chunks, 0.03 / static_cast<double>(chunks), 0.04, 0.03);
    for (int64_t c = 0; c < 4 * chunks; ++c) {  // unequal chunks, slow links
      costs.forward[c] += 0.002 * static_cast<double>(c);
      costs.activations[c] = costs.gradients[c] = 1e6;
    }
    costs.latency = 0.005;
    costs.bandwidth = 1e8;
    const double predicted = simulate(schedule, costs).seconds;
    double found = 0;
    for (int i = 0; i < 4; ++i) {
      found = SleepingPipeline(schedule, costs).seconds();
      if (found < 1.15 * predicted) break;
    }
    EXPECT_GT(found, 0.99 * predicted) << name_of(kind);
    EXPECT_LT(found, 1.15 * predicted) << name_of(kind);
  }
}

int64_t count(const std::string& text, const std::string& part) {
  int64_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(Drawing, HasBoxWithTimesPerPass) {
  const auto schedule = make_schedule(PipelineSchedule::kZeroBubble, 2, 1, 4);
  const auto svg = schedule_svg(schedule, simulate(schedule, equal_costs(2)), 2, "a < b & c");
  EXPECT_EQ(count(svg, "<g><title>"), 2 * 4 * 3);
  EXPECT_EQ(count(svg, "</g>"), 2 * 4 * 3);
  EXPECT_EQ(count(svg, "chunk 1, input gradient, micro-batch 0: 2 s to 3 s<"), 1);
  EXPECT_EQ(count(svg, ">a &lt; b &amp; c<"), 1);
  EXPECT_EQ(count(svg, ">rank 1<"), 1);
  EXPECT_EQ(count(svg, ">backward<"), 0);  // not in the legend if unused
  EXPECT_EQ(count(svg, "</svg>"), 1);
}

}  // namespace simulation_test
}  // namespace hero
