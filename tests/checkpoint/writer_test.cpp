// Asynchronous checkpoints of several ranks. The ranks are threads.
#include "checkpoint/writer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "checkpoint/example_run.h"
#include "checkpoint/ranks.h"
#include "hf/load.h"

namespace hero {
namespace writer_test {

namespace fs = std::filesystem;
using test::example_of_rank;
using test::InMemoryStore;
using test::names_in;
using test::run_ranks;
using test::TemporaryFolder;
using test::verify_checkpoint;

constexpr int64_t kRanks = 4;

TEST(CheckpointWriter, FourRanksWriteOneFolder) {
  const TemporaryFolder run;
  test::save_example(run.path(), 1);
  test::save_by_ranks(run.path(), 7, kRanks);
  const fs::path saved = run / "checkpoints" / "step-00000007";
  EXPECT_EQ(names_in(saved),
            (std::vector<std::string>{
                "config.json", "config.toml", "manifest.json", "model-00001-of-00004.safetensors",
                "model-00002-of-00004.safetensors", "model-00003-of-00004.safetensors",
                "model-00004-of-00004.safetensors", "model-model.b.safetensors",
                "model.safetensors.index.json", "optimizer-00001-of-00004.safetensors",
                "optimizer-00002-of-00004.safetensors", "optimizer-00003-of-00004.safetensors",
                "optimizer-00004-of-00004.safetensors", "optimizer.safetensors.index.json", "state.json"}));
  EXPECT_NO_THROW(verify_checkpoint(saved));
  EXPECT_EQ(names_in(run / "checkpoints"), (std::vector<std::string>{"step-00000001", "step-00000007"}));
  EXPECT_EQ(resolve_model_dir(run.path()), saved);

  const auto index = nlohmann::json::parse(test::read_bytes(saved / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 2 * 300 * 4);
  EXPECT_EQ(index["weight_map"]["model.of-rank-2"], "model-00003-of-00004.safetensors");
  EXPECT_EQ(index["weight_map"]["model.b"], "model-model.b.safetensors");
  const ShardedReader model(saved, "model"), optimizer(saved, "optimizer");
  EXPECT_EQ(model.names(), (std::vector<std::string>{"model.b", "model.of-rank-0", "model.of-rank-1",
                                                     "model.of-rank-2", "model.of-rank-3"}));
  EXPECT_EQ(optimizer.names(),
            (std::vector<std::string>{"exp_avg.model.b[0,75)", "exp_avg.model.b[150,225)",
                                      "exp_avg.model.b[225,300)", "exp_avg.model.b[75,150)"}));
}

TEST(CheckpointWriter, LargeFilesOfARankAreSharded) {
  const TemporaryFolder run;
  InMemoryStore store;
  const auto errors = run_ranks(2, [&](int64_t rank) {
    CheckpointContents contents;
    for (const char* name : {"a", "b", "c"})
      contents.model.emplace_back(name + std::to_string(rank), at::ones({10}));
    CheckpointWriter(store.client(rank, 2), run.path(), 0, /*max_shard_bytes=*/100).save(1, contents, true);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  EXPECT_EQ(names_in(run / "checkpoints" / "step-00000001"),
            (std::vector<std::string>{"manifest.json", "model-00001-of-00002-00001-of-00002.safetensors",
                                      "model-00001-of-00002-00002-of-00002.safetensors",
                                      "model-00002-of-00002-00001-of-00002.safetensors",
                                      "model-00002-of-00002-00002-of-00002.safetensors",
                                      "model.safetensors.index.json", "optimizer.safetensors.index.json"}));
  EXPECT_EQ(ShardedReader(run / "checkpoints" / "step-00000001", "model").names().size(), 6u);
}

// All ranks save steps 1 to 3, with changed contents in step 2. Returns each rank's error of step 2. The
// others must succeed, and no file of step 2 may remain.
std::vector<std::string> failures(const fs::path& run,
                                  const std::function<void(int64_t rank, CheckpointContents&)>& change) {
  InMemoryStore store;
  std::vector<std::string> messages(kRanks);
  const auto errors = run_ranks(kRanks, [&](int64_t rank) {
    CheckpointWriter writer(store.client(rank, kRanks), run, 0);
    writer.save(1, example_of_rank(1, rank, kRanks), false);
    auto contents = example_of_rank(2, rank, kRanks);
    change(rank, contents);
    writer.save(2, contents, false);
    try {
      writer.finish();
    } catch (const RunError& error) {
      messages[static_cast<size_t>(rank)] = error.what();
    }
    writer.save(3, example_of_rank(3, rank, kRanks), false);
    writer.finish();
  });
  EXPECT_EQ(errors, std::vector<std::string>(kRanks)) << "a failure is thrown once";
  EXPECT_EQ(names_in(run / "checkpoints"), (std::vector<std::string>{"step-00000001", "step-00000003"}));
  for (const auto& checkpoint : list_checkpoints(run)) EXPECT_NO_THROW(verify_checkpoint(checkpoint));
  return messages;
}

void add_unwritable(CheckpointContents& contents) {
  contents.model.emplace_back("odd", at::ones({2}, at::kComplexFloat));
}

TEST(CheckpointWriter, EveryRankReportsTheFailingRanks) {
  const TemporaryFolder run;
  const std::string begin = "cannot save checkpoint " + checkpoint_folder(run.path(), 2).string() + ": ",
                    end = "; earlier checkpoints are intact",
                    reason = "tensor odd: dtype not supported by safetensors";
  const auto all = [&](const std::string& what) {
    return std::vector<std::string>(kRanks, begin + what + end);
  };
  EXPECT_EQ(failures(run.path(),
                     [](int64_t rank, auto& contents) {
                       if (rank == 2) add_unwritable(contents);
                     }),
            all("rank 2: " + reason));
  EXPECT_EQ(failures(run.path(),
                     [](int64_t rank, auto& contents) {
                       if (rank != 2) add_unwritable(contents);
                     }),
            all("rank 0: " + reason + "; rank 1: " + reason + "; rank 3: " + reason));
  EXPECT_EQ(failures(run.path(), [&](int64_t, auto& contents) { contents.copies = {run / "none"}; }),
            all("rank 0: cannot read " + (run / "none").string() + ": No such file or directory"));
  EXPECT_EQ(failures(run.path(),
                     [](int64_t rank, auto& contents) {
                       contents.model[0].first = rank % 2 ? "same" : std::to_string(rank);
                     }),
            all("rank 0: duplicate tensor name: same"));
  EXPECT_EQ(
      failures(run.path(),
               [](int64_t rank, auto& contents) {
                 if (rank == 1) contents.model_slices.clear();
               }),
      all("rank 0: tensor model.b: found the elements [0, 75) [150, 300), expected [0, 300) in slices that "
          "do not overlap"));
}

TEST(CheckpointWriter, AllRanksReportAFolderThatCannotBeCreated) {
  const TemporaryFolder folder;
  test::write_bytes(folder / "run", "a file");
  InMemoryStore store;
  const auto errors = run_ranks(kRanks, [&](int64_t rank) {
    CheckpointWriter writer(store.client(rank, kRanks), folder / "run", 0);
    writer.save(1, example_of_rank(1, rank, kRanks), rank % 2 == 0);
    writer.finish();
  });
  for (const auto& error : errors) {
    EXPECT_NE(error.find(": rank 0: "), std::string::npos) << error;
    EXPECT_NE(error.find("Not a directory"), std::string::npos) << error;
  }
}

TEST(CheckpointWriter, FullDiskOnOneRank) {
  const TemporaryFolder run;
  test::save_example(run.path(), 1);
  const std::string message = test::message_under_limit(10000, [&] {
    InMemoryStore store;
    const auto errors = run_ranks(kRanks, [&](int64_t rank) {
      auto contents = example_of_rank(2, rank, kRanks);
      if (rank == 3) contents.optimizer.emplace_back("large", at::ones({3000}));
      CheckpointWriter writer(store.client(rank, kRanks), run.path(), 1);
      writer.save(2, contents, false);
      writer.finish();
    });
    for (const auto& error : errors) {
      if (error != errors[0]) throw RunError("ranks disagree: " + error);
    }
    throw RunError(errors[0]);
  });
  const fs::path file =
      unfinished_folder(checkpoint_folder(run.path(), 2)) / "optimizer-00004-of-00004.safetensors";
  EXPECT_EQ(message, "cannot save checkpoint " + checkpoint_folder(run.path(), 2).string() +
                         ": rank 3: cannot write " + file.string() +
                         ": File too large; earlier checkpoints are intact");
  EXPECT_EQ(names_in(run / "checkpoints"), std::vector<std::string>{"step-00000001"});
  EXPECT_NO_THROW(verify_checkpoint(run / "checkpoints" / "step-00000001"));
}

TEST(CheckpointWriter, UnresponsiveRankIsNamed) {
  const TemporaryFolder run;
  InMemoryStore store;
  const auto errors = run_ranks(kRanks, [&](int64_t rank) {
    if (rank == 3) return store.fail_keys("/3");
    CheckpointWriter(store.client(rank, kRanks), run.path(), 0)
        .save(1, example_of_rank(1, rank, kRanks), true);
  });
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_NE(errors[rank].find(": rank 3: timeout on key checkpoint/"), std::string::npos) << errors[rank];
  }
  EXPECT_TRUE(fs::is_empty(run / "checkpoints"));
}

// Training continues while a save is blocked: rank 0 cannot read the other rank's key until the gate opens.
TEST(CheckpointWriter, SlowerThanTraining) {
  const TemporaryFolder run;
  InMemoryStore store;
  std::promise<void> opened;
  const auto gate = opened.get_future().share();
  std::atomic<int> saves = 0;
  std::thread training([&] {
    auto store_client = store.client(0, 2);
    store_client.get = [&, get = store_client.get](const std::string& key) {
      gate.wait();
      return get(key);
    };
    CheckpointWriter writer(store_client, run.path(), 0);
    const auto values = at::zeros({300});
    CheckpointContents contents;
    contents.model = {{"w", values}};
    for (int64_t step = 1; step <= 3; ++step) {
      values.fill_(step);
      contents.texts = {{"state.json", std::to_string(step)}};
      writer.save(step, contents, false);
      ++saves;
      values.fill_(-1);
      contents.texts.clear();
    }
    writer.finish();
  });
  std::thread other([&] {
    CheckpointWriter writer(store.client(1, 2), run.path(), 0);
    for (int64_t step = 1; step <= 3; ++step) writer.save(step, {}, false);
    writer.finish();
  });
  while (saves == 0) std::this_thread::yield();
  EXPECT_EQ(saves, 1) << "the second save waits for the first";
  EXPECT_TRUE(list_checkpoints(run.path()).empty());
  opened.set_value();
  training.join();
  other.join();
  ASSERT_EQ(list_checkpoints(run.path()).size(), 3u);
  for (int64_t step = 1; step <= 3; ++step) {
    const fs::path folder = checkpoint_folder(run.path(), step);
    EXPECT_NO_THROW(verify_checkpoint(folder));
    const auto found = at::empty({300});
    read_into(ShardedReader(folder, "model"), folder.string(), "w", found);
    EXPECT_TRUE(at::equal(found, at::full({300}, step, at::kFloat)))
        << "value at the time of the save() call";
    EXPECT_EQ(test::read_bytes(folder / "state.json"), std::to_string(step));
  }
}

TEST(CheckpointWriter, SingleRankAsynchronousSave) {
  const TemporaryFolder run;
  CheckpointWriter writer({}, run.path(), 2);
  for (int64_t step = 1; step <= 4; ++step) {
    test::ExampleContents contents(step);
    if (step == 3) add_unwritable(*contents);
    if (step == 4) {
      EXPECT_EQ(test::error_of<RunError>([&] { writer.save(step, *contents, false); }),
                "cannot save checkpoint " + checkpoint_folder(run.path(), 3).string() +
                    ": tensor odd: dtype not supported by safetensors; earlier checkpoints are intact");
    } else {
      writer.save(step, *contents, false);
    }
  }
  writer.finish();
  EXPECT_EQ(names_in(run / "checkpoints"), (std::vector<std::string>{"step-00000001", "step-00000002"}));
  test::expect_resumable(run.path(), 2);
}

}  // namespace writer_test
}  // namespace hero
