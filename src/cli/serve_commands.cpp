#include <malloc.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <future>

#include "checkpoint/checkpoint.h"
#include "cli/chat_template_option.h"
#include "cli/choice_option.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/device_option.h"
#include "cli/tokenizer_option.h"
#include "hf/load.h"
#include "inference/server/host_header.h"
#include "inference/server/server.h"
#include "io/error.h"
#include "ops/cuda_library.h"

namespace hero {
namespace {

namespace fs = std::filesystem;
using Seconds = std::chrono::duration<double>;

constexpr size_t kSpareThreads = 32;  // besides those of active and queued requests: to reject others
constexpr int64_t kMaxBudget = int64_t{1} << 40;

struct ServeCommand {
  std::string dir, host = "127.0.0.1", model_name, tokenizer, chat_template;
  bool allow_unauthenticated = false;
  DeviceChoice device = DeviceChoice::kAuto;
  std::optional<Dtype> dtype;
  int port = 8000;
  double timeout = 600, drain = 30;
  Engine::Limits engine;
  HttpLimits http;
  HttpAccess access;
  RequestLimits request;
  Budget::Limits budget;
};

// The first SIGINT or SIGTERM is written to signal_fd, the second ends the process.
int signal_fd = -1;
volatile std::sig_atomic_t signaled = 0;

void on_signal(int number) {
  if (signaled) ::_exit(128 + number);
  signaled = 1;
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(signal_fd, &one, sizeof one);
}

void catch_signals() {
  signal_fd = ::eventfd(0, EFD_CLOEXEC);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  for (const int number : {SIGINT, SIGTERM}) ::sigaction(number, &action, nullptr);
}

// Serves until a signal, then finishes accepted requests for at most `drain`.
void serve_until_signaled(HttpServer& http, Engine& engine, Seconds drain) {
  std::exception_ptr failure;
  const int finished_fd = ::eventfd(0, EFD_CLOEXEC);
  std::thread serving([&] {
    try {
      http.serve();
    } catch (...) {
      failure = std::current_exception();
    }
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(finished_fd, &one, sizeof one);
  });
  const auto wait = [&](int milliseconds) {  // whether `serving` has finished
    pollfd entries[] = {{finished_fd, POLLIN, 0}, {signaled ? -1 : signal_fd, POLLIN, 0}};
    ::poll(entries, 2, milliseconds);
    return entries[0].revents != 0;
  };
  bool finished = false;
  while (!finished && !signaled) finished = wait(-1);
  http.drain();
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(drain);
  while (!finished && Clock::now() < deadline) finished = wait(20);
  engine.stop();
  if (!finished) finished = wait(1000);
  http.abort();
  serving.join();
  ::close(finished_fd);
  if (failure) std::rethrow_exception(failure);
}

std::string model_name_of(const ServeCommand& options) {
  if (!options.model_name.empty()) return options.model_name;
  auto path = fs::absolute(options.dir).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

void check_options(const ServeCommand& options, bool key_given) {
  if (key_given && options.access.api_key.empty()) {
    throw UserError("--api-key: found an empty value, expected a key");
  }
  if (!options.access.api_key.empty() && options.allow_unauthenticated) {
    throw UserError("--allow-unauthenticated: found an API key (--api-key or HERO_API_KEY), expected none");
  }
  if (options.access.api_key.empty() && !options.allow_unauthenticated && !is_loopback(options.host)) {
    throw UserError("--host " + options.host +
                    ": found no API key for an address that other machines can reach, expected --api-key, "
                    "HERO_API_KEY or --allow-unauthenticated");
  }
  const auto check_total = [](const char* name, int64_t total, const char* request_name, int64_t request) {
    if (total >= request) return;
    throw UserError(std::string(name) + ": found " + std::to_string(total) + ", expected at least " +
                    request_name + " = " + std::to_string(request));
  };
  const auto& [request, total] = options.budget;
  check_total("--max-pending-response", total.bytes, "--max-response", request.bytes);
  check_total("--max-pending-tokens", total.tokens, "--max-request-tokens", request.tokens);
}

// Without a usable template in the folder the server has no chat.
ServedChat open_served_chat(const ServeCommand& options, const fs::path& folder, const Tokenizer& tokenizer,
                            const ModelConfig& model) {
  ServedChat chat;
  const auto unavailable = [&](const std::exception& error) {
    if (!options.chat_template.empty()) throw;
    chat.unavailable = error.what();
  };
  try {
    chat.chat_template =
        open_chat_template(options.chat_template, options.tokenizer, folder, tokenizer, model);
    chat.end = find_end_of_turn(*chat.chat_template, tokenizer, folder);
  } catch (const UserError& error) {
    unavailable(error);
  } catch (const RunError& error) {
    unavailable(error);
    std::fprintf(stderr, "warning: serve: no chat: %s\n", error.what());
  }
  if (!chat.unavailable.empty()) chat.chat_template = nullptr;
  return chat;
}

// Loads the model on a thread of its own, which ends. libgomp keeps a pool of threads for every thread that
// has run a parallel region, and with more of them than cores, waiting threads sleep at once: decoding took
// up to twice as long. So only the engine's thread may have a pool while the server runs.
std::unique_ptr<Transformer> load_on_its_own_thread(const fs::path& folder, std::optional<Dtype> dtype,
                                                    const at::Device& device) {
  return std::async(std::launch::async, [&] { return load_model(folder, dtype, device); }).get();
}

void run_serve(const ServeCommand& options) {
  // Fewer arenas: hundreds of threads would fragment the heap.
  ::mallopt(M_ARENA_MAX, 2);
  const auto device = choose_device(options.device, "--device");
  const auto folder = open_model_folder(options.dir);
  const auto model = load_on_its_own_thread(folder, options.dtype, device);
  const Tokenizer tokenizer = open_tokenizer(options.tokenizer, folder, model->config().model);
  const ServedChat chat = open_served_chat(options, folder, tokenizer, model->config().model);
  ServeMetrics metrics;
  Engine engine(*model, tokenizer, metrics, options.engine);
  HttpLimits limits = options.http;
  limits.threads = options.engine.max_batch + options.engine.max_queue + kSpareThreads;
  HttpServer http(limits, options.access,
                  [&](const std::string& endpoint, int status) { metrics.count_request(endpoint, status); });
  Endpoints endpoints(http, engine, *model, tokenizer, chat, metrics,
                      {.model_name = model_name_of(options),
                       .end_tokens = end_tokens(tokenizer, folder),
                       .timeout = Seconds(options.timeout),
                       .request = options.request,
                       .budget = options.budget});
  const int port = http.bind(options.host, options.port);
  catch_signals();
  if (options.access.api_key.empty() && !is_loopback(options.host)) {
    std::fprintf(stderr,
                 "warning: serve: every machine that reaches %s can use this server without an API key\n",
                 options.host.c_str());
  }
  const bool v6 = options.host.find(':') != std::string::npos;
  std::printf("listening on http://%s%s%s:%d\n", v6 ? "[" : "", options.host.c_str(), v6 ? "]" : "", port);
  std::fflush(stdout);
  serve_until_signaled(http, engine, Seconds(options.drain));
}

}  // namespace

void add_serve_command(Command& hero) {
  auto options = std::make_shared<ServeCommand>();
  auto* command = hero.subcommand("serve");
  auto& o = *options;
  command->add_option("dir", o.dir, "run folder (its latest checkpoint), checkpoint or model folder")
      .required();
  command
      ->add_option("--host", o.host, "address to listen on; use 0.0.0.0 or :: to accept remote connections")
      .show_default();
  command->add_option("--port", o.port, "port; 0: any free port, printed at startup")
      .range(0, 65535)
      .show_default();
  auto key = command
                 ->add_option(
                     "--api-key", o.access.api_key,
                     "API key that clients send as Authorization: Bearer KEY; other users can see it on the "
                     "command line, but not in the environment")
                 .environment("HERO_API_KEY");
  command->add_flag("--allow-unauthenticated", o.allow_unauthenticated,
                    "accept requests from other machines without an API key");
  command
      ->add_option("--allow-host", o.access.hosts,
                   "comma-separated host names that requests may have in the Host header, besides loopback "
                   "names and the address of --host")
      .delimiter(',');
  command->add_option("--model-name", o.model_name,
                      "model name in requests and responses; default: name of DIR");
  add_tokenizer_option(*command, o.tokenizer);
  add_chat_template_option(*command, o.chat_template);
  add_device_option(*command, o.device);
  add_choice_option<Dtype>(*command, "--dtype", o.dtype, "compute type; default: as in the folder")
      .one_of(names_of<Dtype>());
  const auto integer_option = [&](const char* name, auto& value, const char* help, int64_t max) {
    command->add_option(name, value, help).range(int64_t{1}, max).show_default();
  };
  integer_option("--max-tokens", o.request.max_tokens, "maximum new tokens per request", 1 << 20);
  integer_option("--max-batch", o.engine.max_batch, "maximum active sequences", 1024);
  integer_option("--max-queue", o.engine.max_queue,
                 "maximum queued requests; more are rejected with status 503", 4096);
  integer_option("--max-body", o.http.max_body, "maximum size of a request body in bytes", 1 << 30);
  integer_option("--max-response", o.budget.request.bytes,
                 "maximum size of a request's prompts and estimated response in bytes", kMaxBudget);
  integer_option("--max-request-tokens", o.budget.request.tokens,
                 "maximum tokens of a request: prompts and new tokens of all completions", kMaxBudget);
  integer_option("--max-pending-response", o.budget.total.bytes,
                 "the same as --max-response for all accepted requests together; more are rejected with "
                 "status 503",
                 kMaxBudget);
  integer_option("--max-pending-tokens", o.budget.total.tokens,
                 "the same as --max-request-tokens for all accepted requests together", kMaxBudget);
  const auto seconds_option = [&](const char* name, double& value, const char* help) {
    command->add_option(name, value, help).range(0.0, 1e6).show_default();
  };
  seconds_option("--timeout", o.timeout, "request timeout in seconds");
  seconds_option("--drain", o.drain, "seconds to finish accepted requests after SIGINT or SIGTERM");
  command->callback([options, key] {
    check_options(*options, key.given());
    run_serve(*options);
  });
}

}  // namespace hero
