#include "perf/step_benchmark_process.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/child_process.h"
#include "io/error.h"
#include "io/file_io.h"

namespace hero {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

// A temporary configuration file.
class ConfigFile {
 public:
  explicit ConfigFile(const Config& config) {
    std::string name = (fs::temp_directory_path() / "hero-bench-XXXXXX.toml").string();
    const int descriptor = ::mkstemps(name.data(), 5);
    if (descriptor < 0)
      throw RunError("hero bench step: " + name + " cannot be created: " + std::strerror(errno));
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

}  // namespace

void write_steps(const Config& config, const StepOptions& options) {
  int64_t done = 0;
  const auto costs = measure_steps(config, options, [&] {
    std::printf("%s\n", ordered_json({{"step", ++done}}).dump().c_str());
    std::fflush(stdout);
  });
  std::printf("%s\n", ordered_json({{"step_ms", costs.step_ms},
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
  std::vector<std::string> words = {"bench",    "step",
                                    "--config", file.path(),
                                    "--steps",  std::to_string(options.steps),
                                    "--warmup", std::to_string(options.warmup)};
  if (options.forward) words.push_back("--forward");
  ChildProcess child(words);
  StepCosts costs;
  bool complete = false;
  while (const auto line = child.read_line()) {
    const auto found = ordered_json::parse(*line);
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
