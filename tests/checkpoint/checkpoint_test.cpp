#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "checkpoint/example_run.h"
#include "io/error.h"

namespace hero {
namespace checkpoint_test {

namespace fs = std::filesystem;
using test::error_of;
using test::ExampleContents;
using test::names_in;
using test::read_bytes;
using test::save_checkpoint;
using test::save_example;
using test::TemporaryFolder;
using test::verify_checkpoint;
using test::write_bytes;

std::vector<std::string> example_files() {
  return {"config.json",
          "config.toml",
          "manifest.json",
          "model-00001-of-00002.safetensors",
          "model-00002-of-00002.safetensors",
          "model.safetensors.index.json",
          "optimizer.safetensors",
          "state.json"};
}

TEST(Checkpoint, ContainsAllFiles) {
  const TemporaryFolder run;
  write_bytes(run / "tokenizer.model", std::string("\0\1\2", 3));
  ExampleContents contents(7);
  (*contents).copies = {run / "tokenizer.model"};
  const fs::path saved = save_checkpoint(run.path(), 7, *contents, 0);
  EXPECT_EQ(saved, run / "checkpoints" / "step-00000007");
  std::vector<std::string> expected = example_files();
  expected.push_back("tokenizer.model");
  EXPECT_EQ(names_in(saved), expected);
  EXPECT_EQ(read_bytes(saved / "tokenizer.model"), std::string("\0\1\2", 3));
  EXPECT_EQ(read_bytes(saved / "config.toml"), "[train]\n");
  EXPECT_NO_THROW(verify_checkpoint(saved));
  EXPECT_EQ(ShardedReader(saved, "optimizer").names(), (std::vector<std::string>{"exp_avg.model.a", "step"}));
}

TEST(Checkpoint, KeepsTheNewest) {
  const TemporaryFolder run;
  for (const int64_t step : {5, 20, 100000000, 9, 30}) save_example(run.path(), step, 0);
  EXPECT_EQ(names_in(run / "checkpoints"),
            (std::vector<std::string>{"step-00000005", "step-00000009", "step-00000020", "step-00000030",
                                      "step-100000000"}));
  EXPECT_EQ(list_checkpoints(run.path()).back().filename(), "step-100000000");
  save_example(run.path(), 40, 3);
  EXPECT_EQ(names_in(run / "checkpoints"),
            (std::vector<std::string>{"step-00000020", "step-00000030", "step-00000040", "step-100000000"}));
  save_example(run.path(), 25, 1);
  EXPECT_EQ(names_in(run / "checkpoints"),
            (std::vector<std::string>{"step-00000025", "step-00000030", "step-00000040", "step-100000000"}))
      << "later steps and the checkpoint just saved are kept";
}

TEST(Checkpoint, KeepsTheBestAlso) {
  const TemporaryFolder run;
  CheckpointWriter writer({}, run.path(), /*keep=*/1);
  const auto save = [&](int64_t step, int64_t verified, int64_t best) {
    writer.mark_verified(verified);
    writer.keep_best(best);
    writer.save(step, *ExampleContents(step), /*wait=*/true);
    std::vector<int64_t> steps;
    for (const auto& folder : list_checkpoints(run.path()))
      steps.push_back(*checkpoint_step(folder.filename().string()));
    return steps;
  };
  using Steps = std::vector<int64_t>;
  EXPECT_EQ(save(1, -1, -1), (Steps{1}));
  EXPECT_EQ(save(2, 1, 1), (Steps{1, 2}));
  EXPECT_EQ(save(3, 2, 1), (Steps{1, 2, 3}));
  EXPECT_EQ(save(4, 3, 1), (Steps{1, 3, 4}));
  EXPECT_EQ(save(5, 4, 1), (Steps{1, 4, 5}));
  EXPECT_EQ(save(6, 5, 5), (Steps{5, 6})) << "the best one is also the newest verified one";
  EXPECT_EQ(save(7, 6, 5), (Steps{5, 6, 7}));
}

TEST(Checkpoint, SameStepIsReplaced) {
  const TemporaryFolder run;
  const fs::path saved = save_example(run.path(), 3);
  write_bytes(saved / "extra", "of the old one");
  ExampleContents contents(3);
  (*contents).texts["state.json"] = "new";
  save_checkpoint(run.path(), 3, *contents, test::kKeep);
  EXPECT_EQ(read_bytes(saved / "state.json"), "new");
  EXPECT_EQ(names_in(saved), example_files());
  EXPECT_EQ(names_in(run / "checkpoints"), std::vector<std::string>{"step-00000003"});
  EXPECT_NO_THROW(verify_checkpoint(saved));
}

TEST(Checkpoint, LeftoversAreIgnoredAndRemoved) {
  const TemporaryFolder run;
  save_example(run.path(), 3);
  const fs::path folder = run / "checkpoints";
  for (const char* name : {"step-00000004.tmp", "step-00000002.del", "step-00000003.old"}) {
    fs::create_directory(folder / name);
    write_bytes(folder / name / "config.json", "{}");
  }
  fs::create_directory(folder / "step-5");
  fs::create_directory(folder / "mine.tmp");
  write_bytes(folder / "step-00000006", "a file");
  EXPECT_EQ(list_checkpoints(run.path()), std::vector<fs::path>{folder / "step-00000003"});
  clean_leftovers(run.path());
  EXPECT_EQ(names_in(folder),
            (std::vector<std::string>{"mine.tmp", "step-00000003", "step-00000006", "step-5"}))
      << "removes only the program's own leftovers";
  clean_leftovers(run / "none");
  EXPECT_TRUE(list_checkpoints(run / "none").empty());
}

TEST(Checkpoint, InterruptedReplacementIsReverted) {
  const TemporaryFolder run;
  const fs::path saved = save_example(run.path(), 3);
  fs::rename(saved, saved.string() + ".old");
  fs::create_directory(saved.string() + ".tmp");
  clean_leftovers(run.path());
  EXPECT_EQ(list_checkpoints(run.path()), std::vector<fs::path>{saved});
  EXPECT_NO_THROW(verify_checkpoint(saved));
}

void flip_bit(const fs::path& path, size_t at, int bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const int byte = file.get() ^ 1 << bit;
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte));
}

TEST(Checkpoint, FlippedBitIsReportedWithItsFile) {
  const TemporaryFolder run;
  const fs::path saved = save_example(run.path(), 2, 0);
  std::mt19937 random(3);
  for (const std::string& name : example_files()) {
    const std::string bytes = read_bytes(saved / name);
    const size_t flips = name == "manifest.json" ? bytes.size() : std::min<size_t>(bytes.size(), 20);
    for (size_t i = 0; i < flips; ++i) {
      const size_t at = name == "manifest.json" ? i : random() % bytes.size();
      const int bit = static_cast<int>(random() % 8);
      flip_bit(saved / name, at, bit);
      const std::string message = error_of<UserError>([&] { verify_checkpoint(saved); });
      EXPECT_EQ(message.rfind((saved / name).string() + ": altered", 0), 0u) << at << ": " << message;
      EXPECT_NE(message.find("expected"), std::string::npos);
      flip_bit(saved / name, at, bit);
    }
  }
  EXPECT_NO_THROW(verify_checkpoint(saved));
}

TEST(Checkpoint, TruncatedExtendedAndMissingFilesAreReported) {
  const TemporaryFolder run;
  const fs::path saved = save_example(run.path(), 2, 0);
  for (const std::string& name : example_files()) {
    const std::string bytes = read_bytes(saved / name);
    const auto error = [&] { return error_of<UserError>([&] { verify_checkpoint(saved); }); };
    write_bytes(saved / name, bytes.substr(0, bytes.size() / 2));
    EXPECT_NE(error().find(name + ": " + (name == "manifest.json" ? "altered or truncated" : "truncated")),
              std::string::npos)
        << error();
    write_bytes(saved / name, bytes + "x");
    EXPECT_NE(error().find(name + ": altered"), std::string::npos) << error();
    fs::remove(saved / name);
    EXPECT_NE(error().find(name + ": missing"), std::string::npos) << error();
    EXPECT_EQ(error().find('\n'), std::string::npos);
    write_bytes(saved / name, bytes);
  }
}

// Files are hashed concurrently.
TEST(Checkpoint, TheFirstOfSeveralDamagedFilesIsReported) {
  const TemporaryFolder run;
  const fs::path saved = save_example(run.path(), 2, 0);
  auto names = example_files();
  std::erase(names, "manifest.json");
  std::ranges::sort(names);
  for (auto last = names.rbegin(); last != names.rend(); ++last) {
    if (last == names.rbegin()) {
      fs::remove(saved / *last);
    } else {
      flip_bit(saved / *last, 0, 0);
    }
    for (int repeat = 0; repeat < 20; ++repeat) {
      const auto message = error_of<UserError>([&] { verify_checkpoint(saved); });
      EXPECT_EQ(message.rfind((saved / *last).string() + ": ", 0), 0u) << message;
    }
  }
}

TEST(Checkpoint, ModelFilesAreVerifiedBeforeLoading) {
  const TemporaryFolder run;
  const fs::path saved = save_example(run.path(), 2, 0);
  EXPECT_EQ(open_model_folder(run.path()), saved);
  const fs::path model = saved / "model-00001-of-00002.safetensors",
                 optimizer = saved / "optimizer.safetensors";
  const auto error = [&] { return error_of<UserError>([&] { open_model_folder(run.path()); }); };
  const std::string bytes = read_bytes(model);
  write_bytes(model, bytes.substr(0, bytes.size() - 1));
  EXPECT_EQ(error(), model.string() + ": truncated: found " + std::to_string(bytes.size() - 1) +
                         " bytes, expected " + std::to_string(bytes.size()));
  write_bytes(model, bytes);
  flip_bit(model, bytes.size() - 1, 0);
  EXPECT_EQ(error().rfind(model.string() + ": altered: found sha256 ", 0), 0u) << error();
  write_bytes(model, bytes);

  flip_bit(optimizer, 0, 0);
  EXPECT_EQ(open_model_folder(run.path()), saved) << "the optimizer's files are not hashed";
  write_bytes(optimizer, "");
  EXPECT_EQ(error().rfind(optimizer.string() + ": truncated: found 0 bytes", 0), 0u) << error();
  fs::remove(optimizer);
  EXPECT_EQ(open_model_folder(run.path()), saved);

  write_bytes(model, "");
  fs::remove(saved / "manifest.json");
  EXPECT_EQ(open_model_folder(run.path()), saved) << "a model folder has no manifest";
}

TEST(Checkpoint, ErrorNamesTheNewestIntactEarlierCheckpoint) {
  const TemporaryFolder run;
  for (const int64_t step : {1, 2, 3, 4}) save_example(run.path(), step, 0);
  const fs::path folder = run / "checkpoints";
  write_bytes(folder / "step-00000003" / "state.json", "{}");
  write_bytes(folder / "step-00000002" / "state.json", "{}");
  EXPECT_NE(error_of<UserError>([&] { open_model_folder(folder / "step-00000003"); })
                .find("; the newest intact checkpoint before it is " +
                      fs::canonical(folder / "step-00000001").string()),
            std::string::npos);
  write_bytes(folder / "step-00000001" / "state.json", "{}");
  EXPECT_EQ(error_of<UserError>([&] { open_model_folder(folder / "step-00000002"); }).find("before it"),
            std::string::npos);
}

TEST(Checkpoint, FailedSaveKeepsEarlierCheckpoints) {
  const TemporaryFolder run;
  const fs::path saved = save_example(run.path(), 1);
  ExampleContents contents(2);
  const auto message = [&] {
    return error_of<RunError>([&] { save_checkpoint(run.path(), 2, *contents, 1); });
  };
  (*contents).copies = {run / "no-tokenizer"};
  EXPECT_NE(message().find("no-tokenizer: No such file"), std::string::npos) << message();
  EXPECT_NE(message().find("step-00000002: "), std::string::npos);
  EXPECT_NE(message().find("; earlier checkpoints are intact"), std::string::npos);
  (*contents).copies = {saved / "config.json"};
  EXPECT_NE(message().find("two files named config.json"), std::string::npos) << message();
  EXPECT_EQ(names_in(run / "checkpoints"), std::vector<std::string>{"step-00000001"});
  EXPECT_NO_THROW(verify_checkpoint(saved));
}

TEST(Checkpoint, UnwritableFolderIsARunError) {
  const TemporaryFolder folder;
  write_bytes(folder / "file", "");
  const auto message = [](const fs::path& run) { return error_of<RunError>([&] { save_example(run, 1); }); };
  EXPECT_NE(message(folder / "file").find("Not a directory"), std::string::npos) << message(folder / "file");
  EXPECT_NE(message("/proc/nowhere").find("cannot save checkpoint /proc/nowhere"), std::string::npos);
}

TEST(Checkpoint, FullDiskKeepsEarlierCheckpoints) {
  const TemporaryFolder run;
  const fs::path saved = save_example(run.path(), 1);
  const auto save = [&] { save_example(run.path(), 2); };
  for (const uint64_t bytes : {0, 100, 500, 1250}) {
    const std::string message = test::message_under_limit(bytes, save);
    EXPECT_NE(message.find("File too large; earlier checkpoints are intact"), std::string::npos) << message;
    EXPECT_EQ(names_in(run / "checkpoints"), std::vector<std::string>{"step-00000001"});
    EXPECT_NO_THROW(verify_checkpoint(saved));
  }
  EXPECT_EQ(test::message_under_limit(1 << 20, save), "");
}

TEST(Checkpoint, KilledSavesLeaveAResumableRun) {
  const TemporaryFolder run;
  int64_t last = 1;
  save_example(run.path(), last);
  std::mt19937 random(1);
  for (int i = 0; i < 5 && !HasFailure(); ++i) {
    last = test::save_until_killed(run.path(), last + 1,
                                   std::uniform_int_distribution<int64_t>(0, 60000)(random),
                                   [](const fs::path& folder, int64_t step) { save_example(folder, step); });
    test::expect_resumable(run.path(), last);
    last += 1;
  }
}

TEST(Checkpoint, ResolvesModelFolder) {
  const TemporaryFolder folder;
  const auto message = [&](const std::string& name) {
    return error_of<UserError>([&] { resolve_model_dir(folder / name); });
  };
  save_example(folder / "run", 1, 0);
  const fs::path latest = save_example(folder / "run", 2, 0);
  EXPECT_EQ(resolve_model_dir(folder / "run"), latest);
  EXPECT_EQ(resolve_model_dir(latest), latest);
  fs::create_directory(folder / "model");
  write_bytes(folder / "model" / "model.safetensors", "");
  EXPECT_NE(message("model").find("found neither config.json with model.safetensors"), std::string::npos);
  write_bytes(folder / "model" / "config.json", "{}");
  EXPECT_EQ(resolve_model_dir(folder / "model"), folder / "model");

  EXPECT_NE(message("none").find("no such folder, expected a run folder"), std::string::npos);
  EXPECT_NE(message("model/config.json").find("found a file, expected a run folder"), std::string::npos);
  fs::create_directories(folder / "new" / "checkpoints" / "step-00000001.tmp");
  EXPECT_NE(message("new").find("found no finished checkpoint"), std::string::npos);
  fs::remove(latest / "config.json");
  EXPECT_NE(message("run").find("step-00000002: found no config.json"), std::string::npos);
}

}  // namespace checkpoint_test
}  // namespace hero
