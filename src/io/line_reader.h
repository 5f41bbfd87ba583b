// Streams the lines of a plain, gzip or zstd file. Memory: one line of limited length and a few buffers.
#pragma once
#include <zlib.h>
#include <zstd.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace hero {

/// A longer line is no document but a damaged file or a decompression bomb.
inline constexpr std::size_t kLongestLine = std::size_t{256} << 20;  // bytes

class LineReader {
 public:
  /// Detects compression by extension: .gz, .zst, otherwise plain. UserError if the file cannot be opened.
  explicit LineReader(std::string path);

  /// Reads the next line without its '\n'; false at the end. A line of more than kLongestLine bytes is
  /// skipped and `line` left empty. UserError for corrupt or truncated compressed data.
  bool next(std::string& line);

  /// Whether the last line read was longer than kLongestLine.
  bool too_long() const { return too_long_; }
  /// The end of a message about such a line: found and expected length.
  static std::string too_long_message();

  /// One-based number of the last line read.
  int64_t line() const { return line_; }
  /// Start of the last line read, in bytes of uncompressed text.
  int64_t offset() const { return line_begin_; }
  /// Bytes read from disk.
  int64_t bytes_read() const { return bytes_read_; }

 private:
  bool refill();
  static int end_gzip(z_stream* stream);
  // The next block of compressed bytes; empty at the end of the file.
  std::size_t read_compressed();
  void refill_gzip();
  void refill_zstd();
  [[noreturn]] void fail_corrupt(const std::string& what) const;

  std::string path_;
  enum class Kind { plain, gzip, zstd } kind_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{nullptr, std::fclose};
  std::unique_ptr<z_stream, int (*)(z_stream*)> gzip_{nullptr, end_gzip};
  std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> zstd_{nullptr, ZSTD_freeDStream};
  std::vector<char> compressed_;
  ZSTD_inBuffer zstd_in_{nullptr, 0, 0};
  bool in_frame_ = false, any_frame_ = false;  // of zstd, or members of gzip
  bool too_long_ = false;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  int64_t text_bytes_ = 0, line_begin_ = 0, line_ = 0, bytes_read_ = 0;
};

}  // namespace hero
