// metrics.jsonl of a run that resumes at a step.
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "fuzz/checks.h"
#include "fuzz/targets.h"
#include "train/metrics.h"

namespace hero::fuzz {

namespace metrics_fuzz {

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace metrics_fuzz

bool read_metrics(std::string_view bytes) {
  using metrics_fuzz::bytes_of;
  constexpr int64_t kStep = 5;
  const std::string path = input_file("metrics.jsonl", bytes), copy = path + ".damaged";
  std::filesystem::remove(copy);
  {
    MetricsLog log(path);
    log.truncate_after(kStep);
    log.append({{"step", kStep + 1}});
  }
  const std::string kept = bytes_of(path);
  std::string_view rest = bytes;
  for (size_t begin = 0, end; (end = kept.find('\n', begin)) != kept.npos; begin = end + 1) {
    const std::string line = kept.substr(begin, end - begin + 1);
    const auto parsed = nlohmann::json::parse(line);
    require(parsed.at("step").is_number_integer() && parsed["step"] <= kStep + 1, "a line of a later step");
    if (end + 1 == kept.size()) {
      require(line == "{\"step\":6}\n", "no line of the next step");
      break;
    }
    const size_t at = rest.find(line);
    require(at != rest.npos, "a line that the file did not have, or in another order");
    rest.remove_prefix(at + line.size());
  }
  require(kept.ends_with('\n'), "an incomplete last line");
  const bool damaged = std::filesystem::exists(copy);
  if (damaged) require(bytes.starts_with(bytes_of(copy)), "a copy that differs from the file");
  return !damaged && bytes.ends_with('\n');
}

}  // namespace hero::fuzz
