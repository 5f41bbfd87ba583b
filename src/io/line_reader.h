// Lines of a plain, gzip or zstd file, decompressed as they are read: memory is one line and a few buffers.
#pragma once
#include <zlib.h>
#include <zstd.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace hero {

class LineReader {
 public:
  /// The compression follows from the name: .gz, .zst, anything else is plain. UserError when the file cannot
  /// be opened.
  explicit LineReader(std::string path);

  /// The next line without its '\n'; false at the end. UserError for damaged or truncated compressed data.
  bool next(std::string& line);

  /// The number of the line last read, from 1.
  int64_t line() const { return line_; }
  /// Where the line last read begins, in bytes of uncompressed text.
  int64_t offset() const { return line_begin_; }
  /// How many bytes of the file on the disk have been read.
  int64_t bytes_read() const { return bytes_read_; }

 private:
  bool refill();
  void refill_gzip();
  void refill_zstd();
  [[noreturn]] void damaged(const std::string& what) const;

  std::string path_;
  enum class Kind { plain, gzip, zstd } kind_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{nullptr, std::fclose};
  std::unique_ptr<gzFile_s, int (*)(gzFile)> gzip_{nullptr, gzclose};
  std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> zstd_{nullptr, ZSTD_freeDStream};
  std::vector<char> compressed_;
  ZSTD_inBuffer zstd_in_{nullptr, 0, 0};
  bool in_frame_ = false;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  int64_t text_bytes_ = 0, line_begin_ = 0, line_ = 0, bytes_read_ = 0;
};

}  // namespace hero
