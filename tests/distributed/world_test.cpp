// Rendezvous, process groups and the shared store.
#include "distributed/world.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "distributed/heartbeat.h"
#include "distributed/processes.h"
#include "distributed/rendezvous.h"
#include "distributed/wait_limit.h"
#include "io/error.h"
#include "io/file_hash.h"

namespace hero {
namespace world_test {

Config example(int64_t pipeline, int64_t expert, double timeout = 60) {
  Config config;
  config.train.global_batch = 48;
  config.parallel.pipeline = pipeline;
  config.parallel.expert = expert;
  config.parallel.timeout = timeout;
  return config;
}

TEST(World, groups_follow_the_mesh) {
  run_processes(4, [] {
    const World world(read_launch(), example(2, 2), c10::kCPU);
    const int64_t rank = world.launch().rank;
    const std::vector<int64_t> stage = rank < 2 ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{2, 3};
    EXPECT_EQ(world.all().ranks(), (std::vector<int64_t>{0, 1, 2, 3}));
    EXPECT_EQ(world.data().ranks(), stage);
    EXPECT_EQ(world.expert().ranks(), stage);
    EXPECT_EQ(world.replica().ranks(), std::vector<int64_t>{rank});
    EXPECT_EQ(world.channel(Channel::kActivations).ranks(), (std::vector<int64_t>{rank % 2, rank % 2 + 2}));
    EXPECT_EQ(world.data().rank(), rank % 2);
    EXPECT_EQ(world.channel(Channel::kActivations).rank(), rank / 2);
  });
}

TEST(World, store_set_reaches_all_ranks) {
  run_processes(3, [] {
    const World world(read_launch(), example(1, 1), c10::kCPU);
    if (world.launch().rank == 1) world.set("seed", "17");
    EXPECT_EQ(world.get("seed"), "17");
  });
}

TEST(World, single_process) {
  run_processes(1, [] {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) unsetenv(name);
    const World world(read_launch(), example(1, 1), c10::kCPU);
    EXPECT_TRUE(world.is_rank_zero());
    world.set("seed", "17");
    EXPECT_EQ(world.get("seed"), "17");
    world.check_same_on_all_ranks({{"train.seed", "1"}});
  });
}

TEST(World, all_ranks_report_the_first_difference) {
  Processes processes(3, [] {
    const World world(read_launch(), example(1, 1), c10::kCPU);
    world.check_same_on_all_ranks({{"version", "1"}, {"train.seed", "17"}});
    world.check_same_on_all_ranks({{"version", "1"}, {"train.seed", world.launch().rank == 2 ? "18" : "17"}});
  });
  for (int rank = 0; rank < 3; ++rank) {
    const ExitResult result = processes.wait(rank, 60);
    EXPECT_EQ(result.status, 2);
    EXPECT_TRUE(result.error.starts_with("train.seed: found 18 on rank 2 (host ")) << result.error;
    EXPECT_TRUE(result.error.ends_with("), expected 17 as on rank 0\n")) << result.error;
  }
}

TEST(World, missing_rank_is_named) {
  Processes processes(3, [] { const World world(read_launch(), example(1, 1, 2), c10::kCPU); },
                      {{"WORLD_SIZE", "4"}});
  for (int rank = 0; rank < 3; ++rank) {
    const ExitResult result = processes.wait(rank, 30);
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(result.error, "rank 3 of 4 did not join within 2 s (parallel.timeout)\n");
  }
}

TEST(World, missing_rank_zero_is_reported) {
  Processes processes(1, [] { const World world(read_launch(), example(1, 1, 2), c10::kCPU); },
                      {{"WORLD_SIZE", "2"}, {"RANK", "1"}});
  const ExitResult result = processes.wait(0, 30);
  EXPECT_EQ(result.status, 1);
  EXPECT_TRUE(result.error.starts_with("rank 1: no connection to the store within 2 s at 127.0.0.1:"))
      << result.error;
}

TEST(WaitLimit, starts_again_while_ranks_hash) {
  const WaitLimit::Clock::time_point begin;
  const auto after = [&](int seconds) { return begin + std::chrono::seconds(seconds); };
  WaitLimit limit(10, begin);
  EXPECT_FALSE(limit.exceeded(after(9), 0));
  EXPECT_FALSE(limit.exceeded(after(12), 1 << 20));
  EXPECT_FALSE(limit.exceeded(after(21), 1 << 20));
  EXPECT_FALSE(limit.exceeded(after(23), 2 << 20));
  EXPECT_TRUE(limit.exceeded(after(33), 2 << 20));
  EXPECT_TRUE(WaitLimit(10, begin).exceeded(after(10), 0));
}

TEST(Heartbeat, reports_hashed_bytes_to_all_ranks) {
  run_processes(3, [] {
    const Launch launch = read_launch();
    const Stores stores = rendezvous(launch, 60);
    Heartbeat heartbeat(*stores.messages, launch, 10);
    const std::string bytes(1000, 'a');
    if (launch.rank == 1) RunningHash().add(bytes.data(), bytes.size());
    while (heartbeat.bytes_hashed_by_others() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(heartbeat.bytes_hashed_by_others(), bytes.size());
  });
}

TEST(Launch, reads_torchrun_environment) {
  Processes processes(1,
                      [] {
                        const Launch launch = read_launch();
                        EXPECT_EQ(launch.rank, 13);
                        EXPECT_EQ(launch.world_size, 16);
                        EXPECT_EQ(launch.local_rank, 5);
                        EXPECT_EQ(launch.local_world_size, 8);
                        EXPECT_EQ(launch.host, "node0");
                        EXPECT_EQ(launch.port, 29400);
                        EXPECT_EQ(launch.run_id, "mine");
                        EXPECT_EQ(launch.restart_count, 2);
                        EXPECT_TRUE(launch.agent_store);
                      },
                      {{"RANK", "13"},
                       {"WORLD_SIZE", "16"},
                       {"LOCAL_RANK", "5"},
                       {"LOCAL_WORLD_SIZE", "8"},
                       {"MASTER_ADDR", "node0"},
                       {"MASTER_PORT", "29400"},
                       {"TORCHELASTIC_RUN_ID", "mine"},
                       {"TORCHELASTIC_RESTART_COUNT", "2"},
                       {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  const ExitResult result = processes.wait(0, 30);
  EXPECT_EQ(result.status, 0) << result.error;
}

TEST(Launch, rejects_invalid_environment) {
  const auto message = [](const std::map<std::string, std::string>& environment) {
    Processes processes(1, [] { read_launch(); }, environment);
    const ExitResult result = processes.wait(0, 30);
    EXPECT_EQ(result.status, 2);
    return result.error;
  };
  EXPECT_EQ(message({{"RANK", "3"}, {"WORLD_SIZE", "2"}}),
            "RANK: found 3, expected a number from 0 to 1 (set by torchrun or another launcher)\n");
  EXPECT_EQ(
      message({{"WORLD_SIZE", ""}}),
      "WORLD_SIZE: not set, expected a number from 1 to 1000000 (set by torchrun or another launcher)\n");
  EXPECT_EQ(message({{"MASTER_ADDR", ""}}), "MASTER_ADDR: not set, expected the host of rank 0\n");
  EXPECT_EQ(
      message({{"MASTER_PORT", "http"}}),
      "MASTER_PORT: found http, expected a number from 1 to 65535 (set by torchrun or another launcher)\n");
}

}  // namespace world_test
}  // namespace hero
