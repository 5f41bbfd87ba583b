#include "checkpoint/failing_calls.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

namespace hero::test {
namespace failing_calls {

// Of the object that exists, one at a time. Calls from `first` and before `end` fail.
std::atomic<int> name = -1, calls = 0, first = 0, end = 0;

bool fails(FailingCalls::Name called) {
  if (name != static_cast<int>(called)) return false;
  const int number = ++calls;
  errno = EIO;
  return number >= first && number < end;
}

}  // namespace failing_calls

FailingCalls::FailingCalls(Name name, int first, int count) {
  failing_calls::calls = 0;
  failing_calls::first = first;
  failing_calls::end = first + count;
  failing_calls::name = static_cast<int>(name);
}

FailingCalls::~FailingCalls() { failing_calls::name = -1; }

}  // namespace hero::test

extern "C" __attribute__((visibility("default"))) int fsync(int descriptor) {
  if (hero::test::failing_calls::fails(hero::test::FailingCalls::Name::kFsync)) return -1;
  return static_cast<int>(syscall(SYS_fsync, descriptor));
}

extern "C" __attribute__((visibility("default"))) int rename(const char* from, const char* to) noexcept {
  if (hero::test::failing_calls::fails(hero::test::FailingCalls::Name::kRename)) return -1;
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
