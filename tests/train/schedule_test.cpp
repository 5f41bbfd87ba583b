#include "train/schedule.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <tuple>

#include "io/error.h"
#include "train/check_schedule.h"

namespace hero {
namespace schedule_test {

using test::check_schedule;
using test::to_text;

// Whether all actions run if a rank also waits until the messages of its action i - send_window have been
// used before it starts action i.
bool completes_with_send_window(const Schedule& schedule, int64_t chunks) {
  std::set<std::tuple<bool, int64_t, int64_t>> done;  // whether forward, chunk, micro-batch
  const auto is_done = [&](bool forward, int64_t chunk, int64_t micro_batch) {
    return chunk < 0 || chunk >= chunks || done.count({forward, chunk, micro_batch}) > 0;
  };
  const int64_t window = static_cast<int64_t>(send_window(chunks));
  std::vector<int64_t> next(schedule.size(), 0);
  bool moved = true, all = true;
  while (moved) {
    moved = false;
    all = true;
    for (size_t rank = 0; rank < schedule.size(); ++rank) {
      const auto& actions = schedule[rank];
      for (; next[rank] < std::ssize(actions); ++next[rank], moved = true) {
        const auto& [pass, chunk, m] = actions[next[rank]];
        const bool forward = pass == Pass::forward;
        if (pass != Pass::weight_gradient && !is_done(forward, chunk + (forward ? -1 : 1), m)) break;
        if (next[rank] >= window) {
          const auto& [sent_pass, from, sent_m] = actions[next[rank] - window];
          const bool sent_forward = sent_pass == Pass::forward;
          bool used = sent_pass == Pass::weight_gradient ||
                      is_done(sent_forward, from + (sent_forward ? 1 : -1), sent_m);
          // The embedded tokens, and their gradients.
          if (sent_forward && from == 0) used = used && is_done(true, chunks - 1, sent_m);
          if (sent_pass != Pass::weight_gradient && !sent_forward && from == chunks - 1)
            used = used && is_done(false, 0, sent_m);
          if (!used) break;
        }
        if (pass != Pass::weight_gradient) done.insert({forward, chunk, m});
      }
      all = all && next[rank] == std::ssize(actions);
    }
  }
  return all;
}

TEST(Schedule, WaitingForOldSendsCannotDeadlock) {
  for (int64_t ranks = 2; ranks <= 8; ++ranks) {
    for (int64_t micro_batches = 1; micro_batches <= 24; ++micro_batches) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(micro_batches) + " micro-batches");
      for (const auto kind : {PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble})
        EXPECT_TRUE(completes_with_send_window(make_schedule(kind, ranks, 1, micro_batches), ranks));
      for (int64_t chunks = 1; chunks <= 4; ++chunks) {
        Schedule evaluation;
        for (int64_t rank = 0; rank < ranks; ++rank)
          evaluation.push_back(forward_actions(rank, ranks, chunks, micro_batches));
        EXPECT_TRUE(completes_with_send_window(evaluation, ranks * chunks)) << chunks;
        if (micro_batches % ranks != 0) continue;
        const auto schedule = make_schedule(PipelineSchedule::kInterleaved, ranks, chunks, micro_batches);
        EXPECT_TRUE(completes_with_send_window(schedule, ranks * chunks)) << chunks;
      }
    }
  }
}

TEST(Schedule, TwoRanksFourMicroBatches) {
  EXPECT_EQ(to_text(make_schedule(PipelineSchedule::k1F1B, 2, 1, 4)),
            "rank 0: 0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3\n"
            "rank 1: 1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3\n");
  EXPECT_EQ(to_text(make_schedule(PipelineSchedule::kInterleaved, 2, 2, 4)),
            "rank 0: 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3\n"
            "rank 1: 1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3\n");
  EXPECT_EQ(to_text(make_schedule(PipelineSchedule::kZeroBubble, 2, 1, 4)),
            "rank 0: 0F0 0F1 0I0 0W0 0F2 0I1 0W1 0F3 0I2 0W2 0I3 0W3\n"
            "rank 1: 1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1F3 1I3 1W2 1W3\n");
}

TEST(Schedule, OneRankRunsEachMicroBatchForwardAndBackward) {
  EXPECT_EQ(to_text(make_schedule(PipelineSchedule::k1F1B, 1, 1, 2)), "rank 0: 0F0 0B0 0F1 0B1\n");
  EXPECT_EQ(make_schedule(PipelineSchedule::kZeroBubble, 1, 1, 2),
            make_schedule(PipelineSchedule::k1F1B, 1, 1, 2));
  EXPECT_EQ(to_text(make_schedule(PipelineSchedule::kInterleaved, 1, 2, 2)),
            "rank 0: 0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1\n");
}

TEST(Schedule, InterleavedWithOneChunkIs1F1B) {
  EXPECT_EQ(make_schedule(PipelineSchedule::kInterleaved, 4, 1, 8),
            make_schedule(PipelineSchedule::k1F1B, 4, 1, 8));
}

// All schedules are complete, free of deadlocks and keep message order; peak activations match the formulas.
TEST(Schedule, AllSizesAreValid) {
  const auto checked_peak_activations = [](PipelineSchedule kind, int64_t ranks, int64_t chunks,
                                           int64_t micro_batches) {
    const auto schedule = make_schedule(kind, ranks, chunks, micro_batches);
    EXPECT_NO_THROW(check_schedule(schedule, ranks * chunks, micro_batches)) << name_of(kind);
    return peak_activations(schedule);
  };
  for (int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (int64_t micro_batches = 1; micro_batches <= 24; ++micro_batches) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(micro_batches) + " micro-batches");
      const auto plain = checked_peak_activations(PipelineSchedule::k1F1B, ranks, 1, micro_batches),
                 zero = checked_peak_activations(PipelineSchedule::kZeroBubble, ranks, 1, micro_batches);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(plain[rank], std::min(ranks - rank, micro_batches));
        EXPECT_EQ(zero[rank], std::min(ranks, micro_batches));  // no more than 1F1B's first rank
      }
      if (micro_batches % ranks != 0) continue;
      for (int64_t chunks = 1; chunks <= 4; ++chunks) {
        const auto interleaved =
            checked_peak_activations(PipelineSchedule::kInterleaved, ranks, chunks, micro_batches);
        for (int64_t rank = 0; rank < ranks && chunks > 1 && ranks > 1; ++rank) {
          const int64_t warm_up = 2 * (ranks - 1 - rank) + (chunks - 1) * ranks;
          EXPECT_EQ(interleaved[rank], std::min(warm_up + 1, chunks * micro_batches)) << rank;
        }
      }
    }
  }
}

std::string validation_error(const Schedule& schedule, int64_t chunks, int64_t micro_batches) {
  try {
    check_schedule(schedule, chunks, micro_batches);
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

TEST(Schedule, ForwardActions) {
  EXPECT_EQ(to_text({forward_actions(0, 2, 2, 3), forward_actions(1, 2, 2, 3)}),
            "rank 0: 0F0 0F1 2F0 2F1 0F2 2F2\n"
            "rank 1: 1F0 1F1 3F0 3F1 1F2 3F2\n");
  for (int64_t ranks = 2; ranks <= 4; ++ranks) {
    for (int64_t chunks = 1; chunks <= 3; ++chunks) {
      for (int64_t micro_batches = 0; micro_batches <= 9; ++micro_batches) {
        Schedule schedule;
        for (int64_t rank = 0; rank < ranks; ++rank)
          schedule.push_back(forward_actions(rank, ranks, chunks, micro_batches));
        int64_t visited = 0;
        EXPECT_NO_THROW(visit_in_dependency_order(schedule, ranks * chunks,
                                                  [&](ActionPosition, const auto&) { ++visited; }));
        EXPECT_EQ(visited, ranks * chunks * micro_batches);
      }
    }
  }
}

TEST(Schedule, InvalidSchedulesAreReported) {
  const Schedule good = make_schedule(PipelineSchedule::k1F1B, 2, 1, 2);  // 0F0 0F1 0B0 0B1; 1F0 1B0 1F1 1B1
  EXPECT_EQ(validation_error(good, 2, 2), "");
  Schedule bad = good;
  bad[0].pop_back();
  EXPECT_EQ(validation_error(bad, 2, 2), "schedule: rank 0, 0B1: is missing");
  bad = good;
  bad[1].erase(bad[1].begin());
  EXPECT_EQ(validation_error(bad, 2, 2), "schedule: rank 1, 1F0: is missing");
  bad = good;
  bad[1].push_back({Pass::backward, 1, 0});
  EXPECT_EQ(validation_error(bad, 2, 2), "schedule: rank 1, 1B0: is duplicated");
  bad = good;
  bad[1].push_back({Pass::input_gradient, 1, 0});
  EXPECT_EQ(validation_error(bad, 2, 2), "schedule: rank 1, 1B0: input or weight gradient is missing");
  bad[1].push_back({Pass::weight_gradient, 1, 0});
  EXPECT_EQ(validation_error(bad, 2, 2), "schedule: rank 1, 1B0: is both whole and split");
  bad = good;
  bad[1].push_back({Pass::forward, 2, 0});
  EXPECT_EQ(validation_error(bad, 2, 2), "schedule: rank 1, 2F0: out of bounds");
  bad = good;
  std::swap(bad[0], bad[1]);
  EXPECT_EQ(validation_error(bad, 2, 2), "schedule: rank 0, 1F0: belongs to rank 1");
  bad = good;
  std::swap(bad[0][1], bad[0][2]);  // 0B0 before 0F1 is valid
  EXPECT_EQ(validation_error(bad, 2, 2), "");
  std::swap(bad[1][1], bad[1][2]);  // 1F1 before 1B0, which 0F1 waits for
  EXPECT_EQ(validation_error(bad, 2, 2), "schedule: rank 0, 0B0: deadlock");
  bad = good;
  std::swap(bad[0][0], bad[0][1]);
  EXPECT_EQ(validation_error(bad, 2, 2), "schedule: rank 1, 1F0: message 0 from rank 0 is for 1F1");
}

TEST(Schedule, RejectsInvalidArguments) {
  const auto error_message = [](PipelineSchedule kind, int64_t ranks, int64_t chunks, int64_t micro_batches) {
    try {
      make_schedule(kind, ranks, chunks, micro_batches);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(error_message(PipelineSchedule::k1F1B, 2, 2, 4),
            "schedule: found 2 chunks per rank, expected 1 with 1f1b");
  EXPECT_EQ(error_message(PipelineSchedule::kInterleaved, 4, 2, 6),
            "schedule: found 6 micro-batches, expected a multiple of the 4 ranks with interleaved");
  EXPECT_EQ(error_message(PipelineSchedule::kZeroBubble, 2, 1, 0),
            "schedule: found 0 micro-batches, expected at least 1");
}

}  // namespace schedule_test
}  // namespace hero
