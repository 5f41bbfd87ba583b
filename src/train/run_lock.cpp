#include "train/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "io/error.h"

namespace hero {

namespace fs = std::filesystem;

RunLock::RunLock(const fs::path& run) {
  const auto path = run / "lock";
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw RunError("cannot write " + path.string() + ": " + std::strerror(errno));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(std::exchange(descriptor_, -1));
    throw UserError(run.string() +
                    ": another process trains in this folder; wait for it, or pass another --run");
  }
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace hero
