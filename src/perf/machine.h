#pragma once
// The machine that a measurement is of.
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace hero {

struct Machine {
  std::string gpu;  ///< the device's name where the measurement is of a GPU; empty: of the processor
  std::string cpu;  ///< "model name" of /proc/cpuinfo, or the architecture
  int64_t cores = 0;
  std::vector<std::string> instructions;  ///< of those that matrix products use, what the processor has
  bool bf16 = false;                      ///< whether one of them multiplies bf16
};

Machine this_machine(c10::Device device);

/// Such as "Intel(R) Xeon(R) Processor, 2 cores (avx2 avx512f, no bf16 instructions)", behind a GPU's name.
std::string to_string(const Machine& machine);

/// Memory that a new process can have: on the CPU MemAvailable of /proc/meminfo, or what the control group
/// leaves if that is less; a GPU's all. Bytes; infinite where the system does not say.
double available_memory(c10::Device device);

}  // namespace hero
