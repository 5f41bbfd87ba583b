#include "train/metrics.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "config/warnings.h"
#include "io/durable_file.h"
#include "io/error.h"
#include "io/json.h"

namespace hero {
namespace {

std::ifstream open_log(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw RunError("cannot read " + path.string() + ": " + std::strerror(errno));
  return stream;
}

// Length of the file up to and including its last line feed.
uint64_t complete_lines_size(const std::filesystem::path& path, uint64_t size) {
  std::ifstream stream = open_log(path);
  std::string block;
  for (uint64_t end = size; end > 0;) {
    const uint64_t begin = end - std::min<uint64_t>(end, 1 << 16);
    block.resize(end - begin);
    stream.seekg(static_cast<std::streamoff>(begin));
    stream.read(block.data(), static_cast<std::streamsize>(block.size()));
    const size_t found = block.rfind('\n');
    if (found != std::string::npos) return begin + found + 1;
    end = begin;
  }
  return 0;
}

std::optional<int64_t> step_of(const std::string& line) {
  const auto parsed = parse_json_or_null(line);
  if (!parsed.is_object() || !parsed.contains("step") || !parsed["step"].is_number_integer())
    return std::nullopt;
  if (parsed["step"].is_number_unsigned() && parsed["step"].get<uint64_t>() > uint64_t{INT64_MAX})
    return std::nullopt;
  return parsed["step"].get<int64_t>();
}

std::string to_line(const nlohmann::ordered_json& object) {
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

// Copies a log of which these lines are removed.
void back_up(const std::filesystem::path& path, const std::vector<int64_t>& lines) {
  const std::filesystem::path copy = unused_path(path.string() + ".damaged");
  std::error_code failed;
  std::filesystem::copy_file(path, copy, failed);
  if (failed) throw RunError("cannot write " + copy.string() + ": " + failed.message());
  warn({path.string() + ": removed " + std::to_string(lines.size()) + " damaged lines, the first is line " +
        std::to_string(lines.front()) + "; the file as it was: " + copy.string()});
}

}  // namespace

nlohmann::json last_logged_line(const std::filesystem::path& path) {
  std::ifstream stream = open_log(path);
  std::string line, last;
  while (std::getline(stream, line)) {
    if (!stream.eof()) last = std::move(line);
  }
  return step_of(last) ? parse_json_or_null(last) : nlohmann::json();
}

MetricsLog::MetricsLog(const std::filesystem::path& path) : file_(path) {
  const uint64_t complete = complete_lines_size(path, file_.size());
  if (complete < file_.size()) file_.truncate(complete);
}

void MetricsLog::append(const nlohmann::ordered_json& line) { file_.append(to_line(line)); }

void MetricsLog::add_to_last(int64_t step, const nlohmann::ordered_json& values) {
  std::ifstream stream = open_log(file_.path());
  const std::filesystem::path changed = file_.path().string() + ".tmp";
  std::string line, previous;
  DurableFile target(changed);
  while (std::getline(stream, line)) {
    if (!previous.empty()) target.write(previous.data(), previous.size());
    previous = line + "\n";
  }
  if (previous.empty() || step_of(previous) != step) {
    warn({file_.path().string() + ": no line of step " + std::to_string(step) +
          ", its validation is not logged"});
    return;
  }
  auto last = nlohmann::ordered_json::parse(previous);
  last.update(values);
  previous = to_line(last);
  target.write(previous.data(), previous.size());
  target.commit();
  file_.replace_with(changed);
}

void MetricsLog::truncate_after(int64_t step) {
  std::ifstream stream = open_log(file_.path());
  const std::filesystem::path kept = file_.path().string() + ".tmp";
  DurableFile target(kept);
  std::string line, buffer;
  std::vector<int64_t> damaged;
  for (int64_t number = 1; std::getline(stream, line); ++number) {
    const auto found = step_of(line);
    if (!found && stream.peek() == std::ifstream::traits_type::eof()) break;
    if (!found) damaged.push_back(number);
    if (!found || *found > step) continue;
    buffer += line + "\n";
    if (buffer.size() > (1 << 20)) {
      target.write(buffer.data(), buffer.size());
      buffer.clear();
    }
  }
  target.write(buffer.data(), buffer.size());
  target.commit();
  if (!damaged.empty()) back_up(file_.path(), damaged);
  file_.replace_with(kept);
}

}  // namespace hero
