#pragma once
// The machine that a measurement is of.
#include <cstdint>
#include <string>
#include <vector>

namespace hero {

struct Machine {
  std::string cpu;  ///< "model name" of /proc/cpuinfo, or the architecture
  int64_t cores = 0;
  std::vector<std::string> instructions;  ///< of those that matrix products use, what the processor has
  bool bf16 = false;                      ///< whether one of them multiplies bf16
};

Machine this_machine();

/// Such as "Intel(R) Xeon(R) Processor, 2 cores (avx2 avx512f, no bf16 instructions)".
std::string to_string(const Machine& machine);

/// Memory that a new process can have: MemAvailable of /proc/meminfo, or what the control group leaves if
/// that is less. Bytes; infinite where the system does not say.
double available_memory();

}  // namespace hero
