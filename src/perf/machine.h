#pragma once
// The machine that a measurement runs on.
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace hero {

struct Machine {
  std::string gpu;  ///< name of the GPU; empty if the CPU is measured
  std::string cpu;  ///< "model name" of /proc/cpuinfo, or the architecture
  int64_t cores = 0;
  std::vector<std::string> instructions;  ///< instruction sets for matrix products that the CPU supports
  bool bf16 = false;                      ///< whether one of them multiplies bf16
};

Machine this_machine(c10::Device device);

/// For example "Intel(R) Xeon(R) Processor, 2 cores (avx2 avx512f, no bf16 instructions)", after the GPU's
/// name.
std::string to_string(const Machine& machine);

/// Bytes available to a new process: on the CPU the minimum of MemAvailable in /proc/meminfo and the cgroup's
/// remaining memory; on a GPU its total memory. Infinite if unknown.
double available_memory(c10::Device device);

}  // namespace hero
