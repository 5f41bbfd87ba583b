// Runs a program many times without loading its libraries anew: replaces main() by a server that forks for
// every request, after the libraries' constructors. Loading LibTorch takes longer than most commands of the
// tests.
//
// Descriptor 0 is a SOCK_SEQPACKET socket. A request is one message with four descriptors (stdin, stdout,
// stderr, reply) and these strings, each with a final 0: the working folder, environment variables as
// NAME=VALUE, an empty string, the words of the command line. The server writes to `reply` the process id
// and, when the process has ended, its exit status, or the negative number of the signal that killed it: two
// 4-byte integers. It exits when the socket is closed.
#include <dlfcn.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using Main = int(int, char**, char**);
Main* program_main = nullptr;

enum File { kStdin, kStdout, kStderr, kReply, kFiles };

struct Request {
  std::array<int, kFiles> files{};
  std::vector<std::string> strings;
};

struct Child {
  pid_t pid;
  int reply;
};

// SIGCHLD is blocked in the server, which reads it from a descriptor, but not in the programs.
sigset_t child_ended() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGCHLD);
  return set;
}

void send(int reply, int32_t value) {
  // Whoever asked may be gone.
  (void)!::send(reply, &value, sizeof value, MSG_NOSIGNAL);
}

// False at the end of the requests.
bool receive(Request& request) {
  std::string bytes(1 << 18, '\0');
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kFiles * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t size = ::recvmsg(0, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* files = CMSG_FIRSTHDR(&message);
  if (size <= 0 || !files) return false;
  std::memcpy(request.files.data(), CMSG_DATA(files), kFiles * sizeof(int));
  bytes.resize(static_cast<size_t>(size));
  for (size_t begin = 0, end = 0; (end = bytes.find('\0', begin)) != bytes.npos; begin = end + 1)
    request.strings.push_back(bytes.substr(begin, end - begin));
  return true;
}

[[noreturn]] void become_program(Request& request) {
  const sigset_t blocked = child_ended();
  ::sigprocmask(SIG_UNBLOCK, &blocked, nullptr);
  for (const int file : {kStdin, kStdout, kStderr}) ::dup2(request.files[file], file);
  ::closefrom(kStderr + 1);
  if (::chdir(request.strings.front().c_str()) != 0) ::_exit(127);
  const auto separator = std::ranges::find(request.strings, "");
  for (auto variable = request.strings.begin() + 1; variable != separator; ++variable)
    ::putenv(variable->data());
  std::vector<char*> words;
  for (auto word = separator + 1; word != request.strings.end(); ++word) words.push_back(word->data());
  words.push_back(nullptr);
  std::exit(program_main(static_cast<int>(words.size()) - 1, words.data(), environ));
}

bool report_end(const Child& child) {
  int status = 0;
  if (::waitpid(child.pid, &status, WNOHANG) != child.pid) return false;
  send(child.reply, WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  ::close(child.reply);
  return true;
}

int serve(int /*argc*/, char** /*argv*/, char** /*variables*/) {
  ::unsetenv("LD_PRELOAD");  // not for the processes that commands start
  const sigset_t blocked = child_ended();
  ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
  const int signals = ::signalfd(-1, &blocked, SFD_CLOEXEC);
  std::vector<Child> children;
  while (true) {
    std::array<pollfd, 2> files{{{0, POLLIN, 0}, {signals, POLLIN, 0}}};
    if (::poll(files.data(), files.size(), -1) < 0) return 1;
    if (files[1].revents != 0) {
      signalfd_siginfo ignored;
      if (::read(signals, &ignored, sizeof ignored) < 0) return 1;
      std::erase_if(children, report_end);
    }
    if (files[0].revents == 0) continue;
    Request request;
    if (!receive(request)) return 0;
    const pid_t pid = ::fork();
    if (pid < 0) return 1;
    if (pid == 0) become_program(request);
    send(request.files[kReply], pid);
    for (const int file : {kStdin, kStdout, kStderr}) ::close(request.files[file]);
    children.push_back({pid, request.files[kReply]});
  }
}

}  // namespace

// NOLINTNEXTLINE(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): the C library calls main() here
extern "C" __attribute__((visibility("default"))) int __libc_start_main(Main* main, int argc, char** argv,
                                                                        void (*init)(), void (*fini)(),
                                                                        void (*loader_fini)(), void* stack) {
  program_main = main;
  using Start = int(Main*, int, char**, void (*)(), void (*)(), void (*)(), void*);
  auto* const start = reinterpret_cast<Start*>(::dlsym(RTLD_NEXT, "__libc_start_main"));
  return start(serve, argc, argv, init, fini, loader_fini, stack);
}
