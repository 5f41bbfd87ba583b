// The control groups are files in a folder of the test's own; the affinity mask is this process's.
#include "io/cores.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include "data/files.h"

namespace hero {
namespace cores_test {

int64_t cores_with(const std::string& file, const std::string& text, const std::string& period = "") {
  const TemporaryFolder folder;
  folder.write(file, text);
  if (!period.empty()) folder.write("cpu/cpu.cfs_period_us", period);
  return available_cores(folder.path());
}

int64_t cores_of(pid_t process) {
  cpu_set_t mask;
  EXPECT_EQ(sched_getaffinity(process, sizeof mask, &mask), 0);
  return CPU_COUNT(&mask);
}

const int64_t kAll = cores_of(/*this process*/ 0);

TEST(AvailableCores, AtMostTheQuotaRoundedUp) {
  EXPECT_EQ(cores_with("cpu.max", "100000 100000\n"), 1);
  EXPECT_EQ(cores_with("cpu.max", "1000 100000\n"), 1);
  EXPECT_EQ(cores_with("cpu.max", "100001 100000\n"), std::min<int64_t>(kAll, 2));
  EXPECT_EQ(cores_with("cpu/cpu.cfs_quota_us", "50000\n", "50000\n"), 1);
  EXPECT_EQ(cores_with("cpu/cpu.cfs_quota_us", "75000\n", "50000\n"), std::min<int64_t>(kAll, 2));
}

TEST(AvailableCores, AllWithoutAQuota) {
  EXPECT_EQ(cores_with("other", ""), kAll);
  EXPECT_EQ(cores_with("cpu.max", "max 100000\n"), kAll);
  EXPECT_EQ(cores_with("cpu.max", "99900000 100000\n"), kAll);
  EXPECT_EQ(cores_with("cpu.max", "damaged"), kAll);
  EXPECT_EQ(cores_with("cpu/cpu.cfs_quota_us", "-1\n", "100000\n"), kAll);
}

TEST(AvailableCores, AtMostTheAffinityMask) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(cores_with("cpu.max", "max 100000\n"), 1);
  EXPECT_EQ(has_own_cores(), cores_of(getppid()) > 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

}  // namespace cores_test
}  // namespace hero
