#include "io/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <thread>

namespace hero {
namespace {

namespace fs = std::filesystem;

constexpr double kNoQuota = std::numeric_limits<double>::infinity();

// Cores' worth of time per period; the files hold "max" or -1 without a quota.
double quota_in_cores(double quota, double period) {
  return quota > 0 && period > 0 ? quota / period : kNoQuota;
}

// Cores of a process's affinity mask; 0: this process. std::thread::hardware_concurrency counts all cores of
// the machine with glibc 2.36.
int cores_of_affinity_mask(pid_t process) {
  cpu_set_t mask;
  if (::sched_getaffinity(process, sizeof mask, &mask) == 0) return CPU_COUNT(&mask);
  return static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u));  // more than 1,024 cores
}

double cpu_quota(const fs::path& cgroup) {
  double quota = 0, period = 0;
  if (std::ifstream in(cgroup / "cpu.max"); in >> quota >> period) return quota_in_cores(quota, period);
  std::ifstream(cgroup / "cpu" / "cpu.cfs_quota_us") >> quota;
  std::ifstream(cgroup / "cpu" / "cpu.cfs_period_us") >> period;
  return quota_in_cores(quota, period);
}

}  // namespace

int64_t available_cores(const fs::path& cgroup) {
  const double cores = cores_of_affinity_mask(0);
  return static_cast<int64_t>(std::min(cores, std::ceil(cpu_quota(cgroup))));
}

bool has_own_cores() { return cores_of_affinity_mask(0) < cores_of_affinity_mask(::getppid()); }

}  // namespace hero
