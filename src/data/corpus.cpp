#include "data/corpus.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <string_view>

#include "io/error.h"
#include "io/file_io.h"
#include "io/json.h"
#include "io/line_reader.h"
#include "io/utf8.h"

namespace hero {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr std::array<std::string_view, 3> kJsonLines = {".jsonl", ".jsonl.zst", ".jsonl.gz"};
constexpr std::array<std::string_view, 3> kWholeFile = {".txt", ".md", ".py"};
constexpr const char* kSkipHint = " (--skip-invalid skips such documents)";
constexpr std::string_view kSupported = ".txt, .md, .py, .jsonl, .jsonl.zst or .jsonl.gz";

template <std::size_t N>
bool ends_with_any(std::string_view name, const std::array<std::string_view, N>& endings) {
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view e) { return name.ends_with(e); });
}

bool is_json_lines(std::string_view name) { return ends_with_any(name, kJsonLines); }
bool is_readable(std::string_view name) { return is_json_lines(name) || ends_with_any(name, kWholeFile); }

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> files;
  try {
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file() && is_readable(entry.path().filename().string())) {
        files.push_back(entry.path().lexically_relative(folder).generic_string());
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw UserError(folder + ": cannot be listed (" + error.code().message() + ": " + error.path1().string() +
                    ")");
  }
  if (files.empty())
    throw UserError(folder + ": no file to read in this folder, expected " + std::string(kSupported));
  std::sort(files.begin(), files.end());
  for (auto& file : files) file = (fs::path(folder) / file).string();
  return files;
}

std::string hex(unsigned char byte) {
  char text[8];
  std::snprintf(text, sizeof(text), "0x%02X", byte);
  return text;
}

}  // namespace

std::string describe(const CorpusOptions& options) {
  if (options.inputs.empty()) return "no input";
  std::string words = options.inputs[0];
  if (options.inputs.size() > 1) words += " and " + std::to_string(options.inputs.size() - 1) + " more";
  return words;
}

Corpus::Corpus(CorpusOptions options) : options_(std::move(options)) {
  for (const auto& input : options_.inputs) {
    std::error_code error;
    if (!fs::exists(input, error)) throw UserError(input + ": no such file or folder");
    if (fs::is_directory(input, error)) {
      const auto inside = files_in(input);
      files_.insert(files_.end(), inside.begin(), inside.end());
    } else if (!is_readable(fs::path(input).filename().string())) {
      throw UserError(input + ": unknown extension \"" + fs::path(input).extension().string() +
                      "\", expected " + std::string(kSupported));
    } else if (fs::is_regular_file(input, error) && fs::file_size(input) == 0) {
      throw UserError(input + ": empty file, expected text");
    } else {
      files_.push_back(input);
    }
  }
  for (const auto& file : files_) {
    std::error_code error;
    const auto size = fs::file_size(file, error);
    bytes_total_ += error ? 0 : static_cast<int64_t>(size);
  }
}

Corpus::~Corpus() = default;

bool Corpus::next(Record& record) {
  while (file_ < files_.size()) {
    const std::string& path = files_[file_];
    record.file = file_;
    record.too_long = false;
    if (!is_json_lines(path)) {
      record.line = record.offset = 0;
      record.bytes = read_file(path);
      bytes_before_ += static_cast<int64_t>(record.bytes.size());
      ++file_;
      ++records_;
      return true;
    }
    if (!lines_) lines_ = std::make_unique<LineReader>(path);
    while (lines_->next(record.bytes)) {
      record.too_long = lines_->too_long();
      if (!record.too_long && record.bytes.find_first_not_of(" \t\r") == std::string::npos) continue;
      record.line = lines_->line();
      record.offset = lines_->offset();
      ++records_;
      return true;
    }
    bytes_before_ += lines_->bytes_read();
    lines_.reset();
    ++file_;
  }
  if (records_ == 0) throw UserError(describe(options_) + ": no document found, expected text");
  return false;
}

int64_t Corpus::bytes_read() const { return bytes_before_ + (lines_ ? lines_->bytes_read() : 0); }

bool Corpus::check_text(const Record& record) const {
  if (record.too_long) {
    if (options_.skip_invalid) return false;
    throw UserError(files_[record.file] + ": line " + std::to_string(record.line) + ", byte " +
                    std::to_string(record.offset) + ": " + LineReader::too_long_message() + kSkipHint);
  }
  const std::string_view bytes = record.bytes;
  const std::size_t bad = find_invalid_utf8(bytes);
  const std::size_t nul = bytes.find('\0');
  if (bad == std::string_view::npos && nul == std::string_view::npos) return true;
  if (options_.skip_invalid) return false;
  const std::size_t at = std::min(bad, nul);
  std::string where = files_[record.file] + ": ";
  if (record.line > 0) where += "line " + std::to_string(record.line) + ", ";
  where += "byte " + std::to_string(record.offset + static_cast<int64_t>(at)) + ": ";
  if (at == nul) throw UserError(where + "NUL byte, expected UTF-8 text" + kSkipHint);
  throw UserError(where + "invalid UTF-8 (" + hex(static_cast<unsigned char>(bytes[at])) +
                  "), expected UTF-8 text" + kSkipHint);
}

bool Corpus::text(Record& record, std::string& out) const {
  if (!check_text(record)) return false;
  if (record.line == 0) {
    out = std::move(record.bytes);
    return true;
  }
  const std::string& file = files_[record.file];
  json object;
  try {
    object = parse_json(record.bytes, {file, record.line, static_cast<size_t>(record.offset)});
  } catch (const UserError& error) {
    if (options_.skip_invalid) return false;
    throw UserError(error.what() + std::string(kSkipHint));
  }
  const std::string at =
      file + ": line " + std::to_string(record.line) + ", byte " + std::to_string(record.offset) + ": ";
  if (!object.is_object()) throw UserError(at + "found " + object.type_name() + ", expected a JSON object");
  const auto field = object.find(options_.text_key);
  if (field == object.end()) {
    std::string keys;
    for (const auto& [key, value] : object.items()) {
      if (keys.size() > 300) {
        keys += ", ...";
        break;
      }
      keys += (keys.empty() ? "" : ", ") + format_value(key);
    }
    throw UserError(at + "no field \"" + options_.text_key + "\", found " +
                    (keys.empty() ? "no field" : keys) + " (set --text-key)");
  }
  if (!field->is_string()) {
    throw UserError(at + "field \"" + options_.text_key + "\" is " + field->type_name() +
                    ", expected a string");
  }
  out = std::move(field->get_ref<std::string&>());
  return true;
}

}  // namespace hero
