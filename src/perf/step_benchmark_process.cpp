#include "perf/step_benchmark_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "io/error.h"
#include "io/file_io.h"

namespace hero {
namespace {

using json = nlohmann::ordered_json;
namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& what, int reason) {
  throw RunError("hero bench step: " + what + ": " + std::strerror(reason));
}

// A temporary configuration file.
class ConfigFile {
 public:
  explicit ConfigFile(const Config& config) {
    std::string name = (fs::temp_directory_path() / "hero-bench-XXXXXX.toml").string();
    const int descriptor = ::mkstemps(name.data(), 5);
    if (descriptor < 0) fail(name + " cannot be created", errno);
    ::close(descriptor);
    path_ = name;
    write_file(path_, dump(config));
  }
  ~ConfigFile() { std::remove(path_.c_str()); }
  ConfigFile(const ConfigFile&) = delete;
  ConfigFile& operator=(const ConfigFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A child process whose stdout is read through a pipe.
class Child {
 public:
  explicit Child(std::vector<std::string> command) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) fail("cannot create a pipe", errno);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::vector<char*> arguments;
    for (auto& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const int failed = ::posix_spawn(&process_, arguments[0], &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    out_.reset(::fdopen(ends[0], "r"));
    if (failed) fail("cannot be started", failed);
  }
  // Closes the pipe, which ends the child at its next line.
  ~Child() {
    out_.reset();
    if (process_ > 0) wait();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// False at the end of the stream.
  bool read(std::string& line) {
    line.clear();
    for (int c; (c = std::getc(out_.get())) != EOF;) {
      if (c == '\n') return true;
      line += static_cast<char>(c);
    }
    return false;
  }

  /// Returns the exit status; 128 + n after signal n.
  int wait() {
    int status = 0;
    while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
    }
    process_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  pid_t process_ = 0;
  std::unique_ptr<std::FILE, Close> out_;
};

}  // namespace

void write_steps(const Config& config, const StepOptions& options) {
  int64_t done = 0;
  const auto costs = measure_steps(config, options, [&] {
    std::printf("%s\n", json({{"step", ++done}}).dump().c_str());
    std::fflush(stdout);
  });
  std::printf("%s\n", json({{"step_ms", costs.step_ms},
                            {"forward_ms", costs.forward_ms},
                            {"router_ms", costs.router_ms},
                            {"peak_memory_mib", costs.peak_memory_mib},
                            {"tensor_peak_mib", costs.tensor_peak_mib},
                            {"product_rate", costs.gemm_flops}})
                          .dump()
                          .c_str());
}

StepCosts measure_in_child(const Config& config, const StepOptions& options,
                           const std::function<void()>& on_step) {
  const ConfigFile file(config);
  std::vector<std::string> command = {fs::read_symlink("/proc/self/exe").string(),
                                      "bench",
                                      "step",
                                      "--config",
                                      file.path(),
                                      "--steps",
                                      std::to_string(options.steps),
                                      "--warmup",
                                      std::to_string(options.warmup)};
  if (options.forward) command.push_back("--forward");
  Child child(std::move(command));
  StepCosts costs;
  bool complete = false;
  for (std::string line; child.read(line);) {
    const auto found = json::parse(line);
    if (found.contains("step")) {
      on_step();
      continue;
    }
    costs = {.step_ms = found.at("step_ms"),
             .forward_ms = found.at("forward_ms"),
             .router_ms = found.at("router_ms"),
             .peak_memory_mib = found.at("peak_memory_mib"),
             .tensor_peak_mib = found.at("tensor_peak_mib"),
             .gemm_flops = found.at("product_rate")};
    complete = true;
  }
  if (const int status = child.wait(); status != 0 || !complete) {
    throw RunError("hero bench step: process of the " + config.router.kind + " model exited with status " +
                   std::to_string(status));
  }
  return costs;
}

}  // namespace hero
