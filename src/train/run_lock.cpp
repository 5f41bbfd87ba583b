#include "train/run_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "config/warnings.h"
#include "io/error.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

struct Owner {
  std::string host;
  pid_t process = 0;
};

Owner this_process() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return {name.data(), getpid()};
}

// A process id that is this process's own was used by another one before, as in a restarted container.
bool has_ended(const Owner& owner) {
  const Owner own = this_process();
  if (owner.host != own.host || owner.process <= 0) return false;
  return owner.process == own.process || (kill(owner.process, 0) != 0 && errno == ESRCH);
}

[[noreturn]] void cannot_write(const fs::path& path) {
  throw RunError("cannot write " + path.string() + ": " + std::strerror(errno));
}

bool create(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0 && errno == EEXIST) return false;
  if (descriptor < 0) cannot_write(path);
  const Owner own = this_process();
  const std::string text = own.host + " " + std::to_string(own.process) + "\n";
  const bool written = ::write(descriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (::close(descriptor) != 0 || !written) {
    const int reason = errno;
    ::unlink(path.c_str());
    errno = reason;
    cannot_write(path);
  }
  return true;
}

void create_exclusive(const fs::path& run, const fs::path& path) {
  if (create(path)) return;
  Owner owner;
  std::ifstream(path) >> owner.host >> owner.process;
  if (has_ended(owner)) {
    ::unlink(path.c_str());
    if (create(path)) return;
  }
  throw UserError(run.string() + ": another process trains in this folder (host " + owner.host + ", pid " +
                  std::to_string(owner.process) + "); wait for it, or delete " + path.string() +
                  " if it has ended");
}

}  // namespace

RunLock::RunLock(const fs::path& run) {
  const auto path = run / "lock";
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) cannot_write(path);
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  const int reason = errno;
  ::close(std::exchange(descriptor_, -1));
  if (reason == EWOULDBLOCK) {
    throw UserError(run.string() +
                    ": another process trains in this folder; wait for it, or pass another --run");
  }
  const fs::path owner = run / "lock.owner";
  warn({"cannot lock " + path.string() + ": " + std::strerror(reason) + "; using " + owner.string()});
  create_exclusive(run, owner);
  owner_ = owner;
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!owner_.empty()) ::unlink(owner_.c_str());
}

}  // namespace hero
