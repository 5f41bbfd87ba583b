#include "perf/machine.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "io/cores.h"
#include "ops/cuda_library.h"

namespace hero {
namespace {

constexpr const char* kInstructions[] = {"sse2", "avx2", "avx512f", "avx512_bf16", "amx_bf16"};

// The value of the first "name: value" line; empty if there is none.
std::string value_of(const char* file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || !line.starts_with(name)) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

double read_number(const char* file) {
  std::ifstream in(file);
  double value = std::numeric_limits<double>::infinity();
  in >> value;  // fails for "max"
  return in ? value : std::numeric_limits<double>::infinity();
}

}  // namespace

Machine this_machine(c10::Device device) {
  Machine machine{.gpu = device.is_cpu() ? "" : cuda_device(device).name,
                  .cpu = value_of("/proc/cpuinfo", "model name"),
                  .cores = available_cores(),
                  .instructions = {}};
  if (machine.cpu.empty()) machine.cpu = "unnamed processor";
  std::istringstream flags(value_of("/proc/cpuinfo", "flags"));
  std::vector<std::string> has;
  for (std::string flag; flags >> flag;) has.push_back(flag);
  for (const std::string name : kInstructions) {
    if (std::ranges::find(has, name) == has.end()) continue;
    machine.instructions.push_back(name);
    machine.bf16 = machine.bf16 || name.ends_with("bf16");
  }
  return machine;
}

std::string to_string(const Machine& machine) {
  std::string text = (machine.gpu.empty() ? "" : machine.gpu + "; ") + machine.cpu + ", " +
                     std::to_string(machine.cores) + " cores (";
  for (const auto& name : machine.instructions) text += name + " ";
  if (machine.bf16) {
    text.back() = ')';
    return text;
  }
  if (!machine.instructions.empty()) text.insert(text.size() - 1, ",");
  return text + "no bf16 instructions)";
}

double available_memory(c10::Device device) {
  if (!device.is_cpu()) return static_cast<double>(cuda_device(device).bytes);
  double bytes = std::numeric_limits<double>::infinity();
  if (const auto kib = value_of("/proc/meminfo", "MemAvailable"); !kib.empty()) bytes = std::stod(kib) * 1024;
  const double limit = read_number("/sys/fs/cgroup/memory.max"),
               used = read_number("/sys/fs/cgroup/memory.current");
  return std::isfinite(limit) && std::isfinite(used) ? std::min(bytes, limit - used) : bytes;
}

}  // namespace hero
