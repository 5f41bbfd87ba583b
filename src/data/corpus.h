// Text corpora as a stream of documents in an order that is the same everywhere: inputs as given, files of a
// folder by path. A .txt, .md or .py file is one document; .jsonl (plain, .gz, .zst) holds one a line and is
// read line by line.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace hero {

class LineReader;

struct CorpusOptions {
  std::vector<std::string> inputs;  // files or folders
  std::string text_key = "text";    // the field of a JSON line that holds the text
  bool skip_invalid = false;        // leave out documents that are no UTF-8 text, instead of an error
};

/// The inputs in words, for messages.
std::string describe(const CorpusOptions& options);

/// One document as it lies in its file: the file's bytes, or one JSON line.
struct Record {
  std::size_t file = 0;
  int64_t line = 0;    // from 1; 0 when the file is the document
  int64_t offset = 0;  // of `bytes` in the file's uncompressed text
  std::string bytes;
};

class Corpus {
 public:
  /// Lists the files. UserError for a missing input, an extension that is not read here, an empty file, and a
  /// folder without files to read.
  explicit Corpus(CorpusOptions options);
  ~Corpus();

  /// The next record; false at the end. UserError for unreadable files, and at the end when there was none.
  bool next(Record& record);

  /// The text of a record, valid UTF-8, possibly empty; may be called from several threads. False: left out
  /// (skip_invalid). UserError names the file, the line, the byte in the uncompressed text, what was found
  /// and what was expected.
  bool text(Record& record, std::string& out) const;

  const std::vector<std::string>& files() const { return files_; }
  /// Bytes on the disk, of all files and of what was read so far.
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
