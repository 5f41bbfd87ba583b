#include "study/runs.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <fstream>
#include <optional>
#include <thread>

#include "config/fields.h"
#include "data/fingerprint.h"
#include "data/indexed_dataset.h"
#include "hf/resolve.h"
#include "io/child_process.h"
#include "io/cores.h"
#include "io/error.h"
#include "io/file_io.h"
#include "io/json.h"
#include "io/step_progress.h"
#include "io/stop_signal.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

fs::path log_of(const StudyRun& run) { return run.folder.string() + ".log"; }

bool trained(const StudyRun& run) {
  const auto checkpoints = list_checkpoints(run.folder);
  return !checkpoints.empty() &&
         checkpoint_step(checkpoints.back().filename().string()) == run.config.train.steps;
}

std::vector<std::string> hashes(const TokenFileDigests& digests) {
  std::vector<std::string> list;
  for (const auto& [path, digest] : digests) list.push_back(digest.sha256);
  return list;
}

// Whether eval.json has the last step's losses of this held-out data, wherever its files were then. Earlier
// versions did not record the files.
bool evaluated(const StudyRun& run) {
  if (run.evaluate.empty()) return true;
  const fs::path file = run.folder / "eval.json";
  const auto found = fs::exists(file) ? parse_json_or_null(read_file(file.string())) : nlohmann::json();
  try {
    if (found.at("step") != run.config.train.steps) return false;
    std::vector<std::vector<std::string>> recorded;
    for (const auto& data_set : found.at("datasets")) {
      auto& list = recorded.emplace_back();
      for (const auto& digest : data_set.at("token_files")) list.push_back(digest.at("sha256"));
    }
    return recorded == run.held_out;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

// A run in progress: training, then evaluation.
class ActiveRun {
 public:
  explicit ActiveRun(const StudyRun& run) : run_(&run), child_(start()) {}

  const StudyRun& run() const { return *run_; }
  void stop() const { child_.send(SIGTERM); }

  /// Exit status of the finished run; nullopt while it is in progress.
  std::optional<int> poll() {
    const auto status = child_.status();
    if (!status || *status != 0 || evaluated(*run_) || stop_signal()) return status;
    if (evaluating_) throw RunError(log_of(*run_).string() + ": no result in " + run_->name + "/eval.json");
    child_ = start();
    return std::nullopt;
  }

 private:
  ChildProcess start() {
    evaluating_ = trained(*run_);
    return ChildProcess(evaluating_ ? run_->evaluate : run_->train, log_of(*run_));
  }

  const StudyRun* run_;
  bool evaluating_ = false;
  ChildProcess child_;
};

// Progress lines end with a carriage return.
std::string last_line(const fs::path& file) {
  std::string text = read_file(file.string());
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text.substr(text.find_last_of("\r\n") + 1);
}

// Counts steps in a metrics file; reads only what was appended since the last call.
class StepCounter {
 public:
  explicit StepCounter(const StudyRun& run) : path_(run.folder / "metrics.jsonl") {}

  int64_t count() {
    std::ifstream file(path_, std::ios::binary | std::ios::ate);
    if (!file) return steps_;
    const auto size = static_cast<int64_t>(file.tellg());
    if (size < read_) read_ = steps_ = 0;  // truncated by a resumed run
    file.seekg(read_);
    std::string added(static_cast<size_t>(size - read_), '\0');
    file.read(added.data(), static_cast<std::streamsize>(added.size()));
    steps_ += std::ranges::count(added, '\n');
    read_ = size;
    return steps_;
  }

 private:
  fs::path path_;
  int64_t read_ = 0, steps_ = 0;
};

std::string joined_names(const std::deque<ActiveRun>& active) {
  std::string names;
  for (const auto& one : active) names += (names.empty() ? "" : ", ") + one.run().name;
  return names;
}

}  // namespace

std::vector<StudyRun> study_runs(const StudyOptions& options, const std::vector<Variant>& variants) {
  const int64_t share = std::max<int64_t>(available_cores() / options.jobs, 1);
  const int64_t threads = options.threads ? options.threads : share;
  std::vector<std::vector<std::string>> held_out;
  for (const auto& prefix : options.held_out)
    held_out.push_back(hashes(digest_evaluated_files(resolve_prefix(prefix, "valid"))));
  std::vector<StudyRun> runs;
  for (int64_t i = 0; i < options.seeds; ++i) {
    for (const auto& variant : variants) {
      if (!variant.same_as.empty()) continue;
      StudyRun run{.name = "",
                   .folder = {},
                   .config = variant.config,
                   .train = {},
                   .evaluate = {},
                   .held_out = held_out};
      run.config.train.seed += i;
      const auto seed = std::to_string(run.config.train.seed);
      run.name = "seed-" + seed + "/" + variant.name;
      run.folder = options.out / ("seed-" + seed) / variant.name;
      run.train = {"train", "--config", options.config.string(), "--config", variant.overlay.string()};
      if (!options.data.empty()) run.train.push_back("--data");
      run.train.insert(run.train.end(), options.data.begin(), options.data.end());
      run.train.insert(run.train.end(), {"--run", run.folder.string(), "--resume"});
      run.train.insert(run.train.end(), options.flags.begin(), options.flags.end());
      run.train.insert(run.train.end(),
                       {"--train.seed=" + seed, "--train.threads=" + std::to_string(threads)});
      if (!options.held_out.empty()) {
        run.evaluate = {"eval", run.folder.string(), "--data"};
        run.evaluate.insert(run.evaluate.end(), options.held_out.begin(), options.held_out.end());
      }
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

void check_existing_run(const StudyRun& run) {
  const auto path = run.folder / "config.toml";
  if (!fs::exists(path)) return;
  const Config existing = load_config({path.string()}, {});
  Config expected = run.config;
  if (expected.model.vocab_size == 0) expected.model.vocab_size = existing.model.vocab_size;
  const auto rejected =
      differences(existing, expected, [](const Field& field) { return !field.has(kMayDifferInStudy); });
  if (!rejected.empty()) {
    throw UserError(path.string() + ": the run was started with different settings (" + rejected.front() +
                    "); expected this study's configuration or a different --out");
  }
}

bool finished(const StudyRun& run) { return trained(run) && evaluated(run); }

int train_all(const std::vector<StudyRun>& runs, int64_t jobs) {
  catch_stop_signals();
  std::deque<const StudyRun*> waiting;
  std::vector<StepCounter> counters(runs.begin(), runs.end());
  int64_t total = 0;
  for (const auto& run : runs) {
    total += run.config.train.steps;
    if (!finished(run)) waiting.push_back(&run);
  }
  const auto done = [&] {
    int64_t steps = 0;
    for (auto& counter : counters) steps += counter.count();
    return steps;
  };
  const auto& train = runs.at(0).config.train;
  StepProgress progress("step", total,
                        {.start = done(),
                         .rate_unit = "tok",
                         .rate_per_item = static_cast<double>(train.global_batch * train.sequence)});
  std::deque<ActiveRun> active;
  int failed = 0;
  bool stopping = false;
  while (!active.empty() || (!waiting.empty() && !failed && !stop_signal())) {
    while (!waiting.empty() && !failed && !stop_signal() && static_cast<int64_t>(active.size()) < jobs) {
      fs::create_directories(waiting.front()->folder.parent_path());
      active.emplace_back(*waiting.front());
      waiting.pop_front();
    }
    if (stop_signal() && !stopping) {
      for (const auto& one : active) one.stop();
      stopping = true;
    }
    for (auto one = active.begin(); one != active.end();) {
      const auto status = one->poll();
      if (!status) {
        ++one;
        continue;
      }
      if (*status != 0 && !stop_signal()) {
        std::fprintf(stderr, "\n%s: %s\n", log_of(one->run()).c_str(), last_line(log_of(one->run())).c_str());
        if (!failed) failed = *status;
      }
      one = active.erase(one);
    }
    progress.update(done(), joined_names(active));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  progress.finish();
  if (!stop_signal()) return failed;
  std::fprintf(stderr, "stopped by signal %d, all runs saved; the same command resumes them\n",
               stop_signal());
  return 128 + stop_signal();
}

}  // namespace hero
