#include "distributed/processes.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "io/error.h"

namespace hero {
namespace {

// A port that is currently free.
int free_port() {
  const int s = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(s, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(s, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(s);
  return ntohs(address.sin_port);
}

int run(const std::function<void()>& work) {
  try {
    work();
    return testing::Test::HasFailure() ? 3 : 0;
  } catch (const UserError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

}  // namespace

Processes::Processes(int count, const std::function<void()>& work,
                     const std::map<std::string, std::string>& environment) {
  std::fflush(nullptr);
  const std::string port = std::to_string(free_port()), size = std::to_string(count);
  for (int rank = 0; rank < count; ++rank) {
    errors_.push_back(memfd_create("stderr", MFD_CLOEXEC));
    const pid_t pid = fork();
    if (pid == 0) {
      dup2(errors_.back(), STDERR_FILENO);
      const std::string text = std::to_string(rank);
      for (const auto& [name, value] : std::map<std::string, std::string>{{"RANK", text},
                                                                          {"LOCAL_RANK", text},
                                                                          {"WORLD_SIZE", size},
                                                                          {"LOCAL_WORLD_SIZE", size},
                                                                          {"MASTER_ADDR", "127.0.0.1"},
                                                                          {"MASTER_PORT", port}})
        setenv(name.c_str(), value.c_str(), 1);
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      const int status = run(work);
      std::fflush(nullptr);
      _exit(status);
    }
    pids_.push_back(pid);
  }
}

Processes::~Processes() {
  for (const pid_t pid : pids_) {
    if (pid <= 0) continue;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  for (const int file : errors_) close(file);
}

std::string Processes::error(int rank) const {
  std::string text(1 << 16, '\0');
  text.resize(std::max<ssize_t>(pread(errors_[rank], text.data(), text.size(), 0), 0));
  return text;
}

ExitResult Processes::wait(int rank, double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int status = 0;
  pid_t& pid = pids_[rank];
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      ADD_FAILURE() << "rank " << rank << " did not exit within " << seconds << " s";
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  pid = 0;
  return {WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status), error(rank)};
}

void run_processes(int count, const std::function<void()>& work) {
  Processes processes(count, work);
  for (int rank = 0; rank < count; ++rank) {
    const ExitResult result = processes.wait(rank, 120);
    EXPECT_EQ(result.status, 0) << "rank " << rank << " of " << count << ": " << result.error;
  }
}

}  // namespace hero
