// The lock of a run folder, also on a file system without locks: this program's flock replaces that of the C
// library.
#include "train/run_lock.h"

#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "hf/temporary_folder.h"
#include "io/error.h"

namespace hero {
namespace run_lock_test {

int flock_error = 0;  // 0: flock works

class NoLocks {
 public:
  NoLocks() { flock_error = ENOLCK; }
  ~NoLocks() { flock_error = 0; }
};

using test::error_of;
using test::read_bytes;
using test::TemporaryFolder;
using test::write_bytes;

std::string host() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

std::string owner(pid_t process) { return host() + " " + std::to_string(process) + "\n"; }

TEST(RunLock, IsExclusive) {
  const TemporaryFolder run;
  {
    const RunLock lock(run.path());
    EXPECT_NE(error_of<UserError>([&] { RunLock(run.path()); }).find("another process trains in this folder"),
              std::string::npos);
  }
  EXPECT_NO_THROW(RunLock(run.path()));
  EXPECT_FALSE(std::filesystem::exists(run / "lock.owner"));
}

TEST(RunLock, UsesAFileWhereTheFileSystemHasNoLocks) {
  const TemporaryFolder run;
  const NoLocks no_locks;
  {
    testing::internal::CaptureStderr();
    RunLock lock(run.path());
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "warning: cannot lock " + (run / "lock").string() +
                                                          ": No locks available; using " +
                                                          (run / "lock.owner").string() + "\n");
    EXPECT_EQ(read_bytes(run / "lock.owner"), owner(getpid()));
    RunLock moved;
    moved = std::move(lock);
    EXPECT_TRUE(std::filesystem::exists(run / "lock.owner"));
  }
  EXPECT_FALSE(std::filesystem::exists(run / "lock.owner"));
}

TEST(RunLock, FileOfAnotherProcess) {
  const TemporaryFolder run;
  const NoLocks no_locks;
  const auto message = [&] { return error_of<UserError>([&] { RunLock(run.path()); }); };
  for (const std::string& text : {owner(getppid()), std::string("elsewhere 7\n"), std::string()}) {
    write_bytes(run / "lock.owner", text);
    EXPECT_NE(message().find("another process trains in this folder (host "), std::string::npos);
    EXPECT_EQ(read_bytes(run / "lock.owner"), text);
  }
}

TEST(RunLock, FileOfAnEndedProcessIsReplaced) {
  const TemporaryFolder run;
  const NoLocks no_locks;
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  for (const pid_t ended : {child, getpid()}) {
    write_bytes(run / "lock.owner", owner(ended));
    const RunLock lock(run.path());
    EXPECT_EQ(read_bytes(run / "lock.owner"), owner(getpid()));
  }
}

}  // namespace run_lock_test
}  // namespace hero

extern "C" __attribute__((visibility("default"))) int flock(int descriptor, int operation) noexcept {
  if (hero::run_lock_test::flock_error == 0)
    return static_cast<int>(syscall(SYS_flock, descriptor, operation));
  errno = hero::run_lock_test::flock_error;
  return -1;
}
