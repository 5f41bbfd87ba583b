#include <malloc.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>

#include "cli/commands.h"
#include "cli/device_option.h"
#include "hf/load.h"
#include "hf/resolve.h"
#include "inference/server/server.h"
#include "io/error.h"
#include "ops/cuda_library.h"
#include "tokenizer/tokenizer.h"

namespace hero {
namespace {

namespace fs = std::filesystem;
using Seconds = std::chrono::duration<double>;

constexpr size_t kSpareThreads = 32;  // beside those of running and waiting requests: to refuse others

struct ServeCommand {
  std::string dir, host = "127.0.0.1", api_key, model_name, tokenizer, device = "auto", dtype;
  int port = 8000;
  double timeout = 600, drain = 30;
  Engine::Limits engine;
  HttpLimits http;
  RequestLimits request;
};

// The first SIGINT or SIGTERM is written there, the second ends the process.
int signal_fd = -1;
volatile std::sig_atomic_t signalled = 0;

void on_signal(int number) {
  if (signalled) ::_exit(128 + number);
  signalled = 1;
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(signal_fd, &one, sizeof one);
}

void catch_signals() {
  signal_fd = ::eventfd(0, EFD_CLOEXEC);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  for (const int number : {SIGINT, SIGTERM}) ::sigaction(number, &action, nullptr);
}

// Serves until a signal, then lets what is accepted finish, as long as `drain` allows.
void serve_until_signalled(HttpServer& http, Engine& engine, Seconds drain) {
  std::exception_ptr failure;
  const int ended = ::eventfd(0, EFD_CLOEXEC);
  std::thread serving([&] {
    try {
      http.serve();
    } catch (...) {
      failure = std::current_exception();
    }
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(ended, &one, sizeof one);
  });
  const auto wait = [&](int milliseconds) {  // whether `serving` has ended
    pollfd entries[] = {{ended, POLLIN, 0}, {signalled ? -1 : signal_fd, POLLIN, 0}};
    ::poll(entries, 2, milliseconds);
    return entries[0].revents != 0;
  };
  bool over = false;
  while (!over && !signalled) over = wait(-1);
  http.drain();
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(drain);
  while (!over && Clock::now() < deadline) over = wait(20);
  engine.stop();
  if (!over) over = wait(1000);
  http.abort();
  serving.join();
  ::close(ended);
  if (failure) std::rethrow_exception(failure);
}

std::string name_of(const ServeCommand& options) {
  if (!options.model_name.empty()) return options.model_name;
  auto path = fs::absolute(options.dir).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

void run_serve(const ServeCommand& options) {
  // Freed memory of hundreds of threads goes back to few places.
  ::mallopt(M_ARENA_MAX, 2);
  const auto device = choose_device(options.device, "--device");
  const auto folder = resolve_model_dir(options.dir);
  const auto model = load_model(folder, options.dtype, device);
  const std::string pieces = options.tokenizer.empty() ? folder.string() : options.tokenizer;
  const Tokenizer tokenizer(pieces);
  if (tokenizer.vocab_size() > model->config().model.vocab_size) {
    throw UserError(pieces + ": " + std::to_string(tokenizer.vocab_size()) +
                    " tokens, expected at most the model's " +
                    std::to_string(model->config().model.vocab_size));
  }
  ServeMetrics metrics;
  Engine engine(*model, tokenizer, metrics, options.engine);
  HttpLimits limits = options.http;
  limits.threads = options.engine.max_batch + options.engine.max_queue + kSpareThreads;
  HttpServer http(limits, options.api_key,
                  [&](const std::string& endpoint, int status) { metrics.count_request(endpoint, status); });
  const Endpoints endpoints(
      http, engine, *model, tokenizer, metrics,
      {.model_name = name_of(options), .timeout = Seconds(options.timeout), .request = options.request});
  const int port = http.bind(options.host, options.port);
  catch_signals();
  const bool v6 = options.host.find(':') != std::string::npos;
  std::printf("listening on http://%s%s%s:%d\n", v6 ? "[" : "", options.host.c_str(), v6 ? "]" : "", port);
  std::fflush(stdout);
  serve_until_signalled(http, engine, Seconds(options.drain));
}

}  // namespace

void add_serve_command(CLI::App& hero) {
  auto options = std::make_shared<ServeCommand>();
  auto* command = hero.add_subcommand("serve", "Answer OpenAI's completions over HTTP");
  auto& o = *options;
  command->add_option("dir", o.dir, "run folder (its latest checkpoint), checkpoint or model folder")
      ->required();
  command
      ->add_option("--host", o.host, "address to listen on; use 0.0.0.0 or :: to accept remote connections")
      ->capture_default_str();
  command->add_option("--port", o.port, "0: any free one, which is printed")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  auto* key = command
                  ->add_option("--api-key", o.api_key,
                               "what clients must send as Authorization: Bearer KEY; other users of this "
                               "machine see command lines, but not the environment")
                  ->envname("HERO_API_KEY");
  command->add_option("--model-name", o.model_name, "its name in requests and answers; default: DIR's");
  command->add_option("--tokenizer", o.tokenizer,
                      "tokenizer file or folder, where the model folder holds none");
  add_device_option(*command, o.device);
  command->add_option("--dtype", o.dtype, "type to compute in; default: the folder's own")
      ->check(CLI::IsMember({"bf16", "fp32", "fp64"}));
  const auto whole = [&](const char* name, auto& value, const char* help, int64_t most) {
    command->add_option(name, value, help)->check(CLI::Range(int64_t{1}, most))->capture_default_str();
  };
  whole("--max-tokens", o.request.max_tokens, "most tokens a request may ask for", 1 << 20);
  whole("--max-batch", o.engine.max_batch, "most texts in the making at a time", 1024);
  whole("--max-queue", o.engine.max_queue, "most requests that wait; others get status 503", 4096);
  whole("--max-body", o.http.max_body, "most bytes of a request's body", 1 << 30);
  const auto seconds = [&](const char* name, double& value, const char* help) {
    command->add_option(name, value, help)->check(CLI::Range(0.0, 1e6))->capture_default_str();
  };
  seconds("--timeout", o.timeout, "seconds for a request");
  seconds("--drain", o.drain, "seconds for what is accepted when a signal ends the server");
  command->callback([options, key] {
    if (key->count() > 0 && options->api_key.empty()) {
      throw UserError("--api-key: found nothing, expected a key");
    }
    run_serve(*options);
  });
}

}  // namespace hero
