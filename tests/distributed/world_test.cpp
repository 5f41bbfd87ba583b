// The processes of a run find one another, and tell one another what they should know.
#include "distributed/world.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "distributed/processes.h"
#include "io/error.h"

namespace hero {
namespace {

Config example(int64_t pipeline, int64_t expert, double timeout = 60) {
  Config config;
  config.train.global_batch = 48;
  config.parallel.pipeline = pipeline;
  config.parallel.expert = expert;
  config.parallel.timeout = timeout;
  return config;
}

TEST(World, groups_are_the_meshes) {
  run_processes(4, [] {
    const World world(read_launch(), example(2, 2), c10::kCPU);
    const int64_t rank = world.launch().rank;
    const std::vector<int64_t> stage = rank < 2 ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{2, 3};
    EXPECT_EQ(world.all().ranks(), (std::vector<int64_t>{0, 1, 2, 3}));
    EXPECT_EQ(world.data().ranks(), stage);
    EXPECT_EQ(world.expert().ranks(), stage);
    EXPECT_EQ(world.replica().ranks(), std::vector<int64_t>{rank});
    EXPECT_EQ(world.lane(false, false).ranks(), (std::vector<int64_t>{rank % 2, rank % 2 + 2}));
    EXPECT_EQ(world.data().rank(), rank % 2);
    EXPECT_EQ(world.lane(false, false).rank(), rank / 2);
  });
}

TEST(World, words_reach_all) {
  run_processes(3, [] {
    const World world(read_launch(), example(1, 1), c10::kCPU);
    if (world.launch().rank == 1) world.tell("seed", "17");
    EXPECT_EQ(world.hear("seed"), "17");
  });
}

TEST(World, alone) {
  run_processes(1, [] {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) unsetenv(name);
    const World world(read_launch(), example(1, 1), c10::kCPU);
    EXPECT_TRUE(world.first());
    world.tell("seed", "17");
    EXPECT_EQ(world.hear("seed"), "17");
    world.agree({{"train.seed", "1"}});
  });
}

TEST(World, differences_are_named_on_all_ranks) {
  Processes processes(3, [] {
    const World world(read_launch(), example(1, 1), c10::kCPU);
    world.agree({{"version", "1"}, {"train.seed", "17"}});
    world.agree({{"version", "1"}, {"train.seed", world.launch().rank == 2 ? "18" : "17"}});
  });
  for (int rank = 0; rank < 3; ++rank) {
    const Ended ended = processes.wait(rank, 60);
    EXPECT_EQ(ended.status, 2);
    EXPECT_TRUE(ended.error.starts_with("train.seed: found 18 on rank 2 (host ")) << ended.error;
    EXPECT_TRUE(ended.error.ends_with("), expected 17 as on rank 0\n")) << ended.error;
  }
}

TEST(World, who_does_not_come_is_named) {
  Processes processes(3, [] { const World world(read_launch(), example(1, 1, 2), c10::kCPU); },
                      {{"WORLD_SIZE", "4"}});
  for (int rank = 0; rank < 3; ++rank) {
    const Ended ended = processes.wait(rank, 30);
    EXPECT_EQ(ended.status, 1);
    EXPECT_EQ(ended.error, "rank 3 of 4 did not come within 2 s (parallel.timeout)\n");
  }
}

TEST(World, the_first_rank_may_be_missing) {
  Processes processes(1, [] { const World world(read_launch(), example(1, 1, 2), c10::kCPU); },
                      {{"WORLD_SIZE", "2"}, {"RANK", "1"}});
  const Ended ended = processes.wait(0, 30);
  EXPECT_EQ(ended.status, 1);
  EXPECT_TRUE(ended.error.starts_with("rank 1: found no store within 2 s at 127.0.0.1:")) << ended.error;
}

TEST(Launch, reads_what_torchrun_sets) {
  Processes processes(1,
                      [] {
                        const Launch launch = read_launch();
                        EXPECT_EQ(launch.rank, 13);
                        EXPECT_EQ(launch.size, 16);
                        EXPECT_EQ(launch.local_rank, 5);
                        EXPECT_EQ(launch.local_size, 8);
                        EXPECT_EQ(launch.host, "node0");
                        EXPECT_EQ(launch.port, 29400);
                        EXPECT_EQ(launch.run, "mine");
                        EXPECT_EQ(launch.restarts, 2);
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
  const Ended ended = processes.wait(0, 30);
  EXPECT_EQ(ended.status, 0) << ended.error;
}

TEST(Launch, refuses_what_is_no_launch) {
  const auto message = [](const std::map<std::string, std::string>& environment) {
    Processes processes(1, [] { read_launch(); }, environment);
    const Ended ended = processes.wait(0, 30);
    EXPECT_EQ(ended.status, 2);
    return ended.error;
  };
  EXPECT_EQ(message({{"RANK", "3"}, {"WORLD_SIZE", "2"}}),
            "RANK: found 3, expected a number from 0 to 1 (set by torchrun and its like)\n");
  EXPECT_EQ(
      message({{"WORLD_SIZE", ""}}),
      "WORLD_SIZE: found nothing, expected a number from 1 to 1000000 (set by torchrun and its like)\n");
  EXPECT_EQ(message({{"MASTER_ADDR", ""}}), "MASTER_ADDR: found nothing, expected the host of rank 0\n");
  EXPECT_EQ(message({{"MASTER_PORT", "http"}}),
            "MASTER_PORT: found http, expected a number from 1 to 65535 (set by torchrun and its like)\n");
}

}  // namespace
}  // namespace hero
