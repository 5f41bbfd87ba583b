// Streams the documents of text corpora in deterministic order: inputs as given, files of a folder by path. A
// .txt, .md or .py file is one document; .jsonl (plain, .gz, .zst) has one per line and is streamed.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace hero {

class LineReader;

struct CorpusOptions {
  std::vector<std::string> inputs;  // files or folders
  std::string text_key = "text";    // JSON field that contains the text
  bool skip_invalid = false;        // skip documents with invalid UTF-8 or JSON, too long lines
};

/// Short description of the inputs, for messages.
std::string describe(const CorpusOptions& options);

/// One raw document: the bytes of a file, or one JSON line.
struct Record {
  std::size_t file = 0;
  int64_t line = 0;    // one-based; 0 if the file is the document
  int64_t offset = 0;  // of `bytes` in the uncompressed file
  std::string bytes;
  bool too_long = false;  // a line of more than kLongestLine bytes, of which `bytes` has none
};

class Corpus {
 public:
  /// Lists the files. UserError for a missing input, an unsupported extension, an empty file, and a folder
  /// without supported files.
  explicit Corpus(CorpusOptions options);
  ~Corpus();

  /// Reads the next record; false at the end. UserError for unreadable files and for an empty corpus.
  bool next(Record& record);

  /// Extracts the text of a record, valid UTF-8, possibly empty. Thread-safe. False: skipped (skip_invalid).
  /// UserError names the file, line, byte in the uncompressed text, the found and the expected value.
  bool text(Record& record, std::string& out) const;

  const std::vector<std::string>& files() const { return files_; }
  /// Bytes on disk, of all files and read so far.
  int64_t bytes_total() const { return bytes_total_; }
  int64_t bytes_read() const;

 private:
  bool check_text(const Record& record) const;

  CorpusOptions options_;
  std::vector<std::string> files_;
  std::size_t file_ = 0;
  std::unique_ptr<LineReader> lines_;
  int64_t records_ = 0, bytes_total_ = 0, bytes_before_ = 0;
};

}  // namespace hero
