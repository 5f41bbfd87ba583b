#pragma once
// How many threads make sense on this machine.
#include <cstdint>
#include <filesystem>

namespace hero {

/// CPU cores that this process may use, at least 1: those of its affinity mask, but no more than the CPU
/// quota of its container, rounded up (cpu.max of the cgroup v2, cpu.cfs_quota_us of the v1 mounted at
/// `cgroup`). Threads beyond the quota are stopped for most of each period, and all others then wait for
/// them.
int64_t available_cores(const std::filesystem::path& cgroup = "/sys/fs/cgroup");

/// Whether the launcher gave this process cores of its own: its affinity mask has fewer than its parent's.
/// Otherwise the processes of a machine share the same cores.
bool has_own_cores();

}  // namespace hero
