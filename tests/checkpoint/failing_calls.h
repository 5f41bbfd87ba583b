#pragma once
// Failures of system calls: this program's fsync and rename replace those of the C library.

namespace hero::test {

/// While it exists, call number `first` (from 1) and the `count - 1` calls after it fail with EIO.
class FailingCalls {
 public:
  enum class Name { kFsync, kRename };
  FailingCalls(Name name, int first, int count = 1);
  ~FailingCalls();
  FailingCalls(const FailingCalls&) = delete;
};

}  // namespace hero::test
