#include "distributed/launch.h"

#include <charconv>
#include <cstdlib>

#include "io/error.h"

namespace hero {
namespace {

std::string text(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

int64_t number(const char* name, int64_t least, int64_t most) {
  const std::string value = text(name);
  int64_t parsed = 0;
  const auto end = value.data() + value.size();
  const auto result = std::from_chars(value.data(), end, parsed);
  if (value.empty() || result.ptr != end || result.ec != std::errc() || parsed < least || parsed > most) {
    throw UserError(std::string(name) + ": " + (value.empty() ? "not set" : "found " + value) +
                    ", expected a number from " + std::to_string(least) + " to " + std::to_string(most) +
                    " (set by torchrun or another launcher)");
  }
  return parsed;
}

}  // namespace

Launch read_launch() {
  Launch launch;
  if (text("RANK").empty() && text("WORLD_SIZE").empty()) return launch;
  launch.world_size = number("WORLD_SIZE", 1, 1'000'000);
  launch.rank = number("RANK", 0, launch.world_size - 1);
  if (!text("LOCAL_WORLD_SIZE").empty())
    launch.local_world_size = number("LOCAL_WORLD_SIZE", 1, launch.world_size);
  if (!text("LOCAL_RANK").empty()) launch.local_rank = number("LOCAL_RANK", 0, launch.world_size - 1);
  launch.host = text("MASTER_ADDR");
  if (launch.host.empty()) throw UserError("MASTER_ADDR: not set, expected the host of rank 0");
  launch.port = number("MASTER_PORT", 1, 65535);
  launch.run_id = text("TORCHELASTIC_RUN_ID");
  if (!text("TORCHELASTIC_RESTART_COUNT").empty())
    launch.restart_count = number("TORCHELASTIC_RESTART_COUNT", 0, 1'000'000);
  launch.agent_store = text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return launch;
}

}  // namespace hero
