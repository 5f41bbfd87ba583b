#include "io/line_reader.h"

#include <cerrno>
#include <cstring>

#include "io/error.h"

namespace hero {

LineReader::LineReader(std::string path) : path_(std::move(path)), buffer_(1 << 17) {
  kind_ = path_.ends_with(".gz") ? Kind::gzip : path_.ends_with(".zst") ? Kind::zstd : Kind::plain;
  if (kind_ == Kind::gzip) {
    gzip_.reset(gzopen(path_.c_str(), "rb"));
  } else {
    file_.reset(std::fopen(path_.c_str(), "rb"));
  }
  if (!gzip_ && !file_) throw UserError(path_ + ": cannot be opened (" + std::strerror(errno) + ")");
  if (kind_ == Kind::zstd) {
    zstd_.reset(ZSTD_createDStream());
    compressed_.resize(ZSTD_DStreamInSize());
  }
}

bool LineReader::next(std::string& line) {
  line.clear();
  line_begin_ = text_bytes_;
  bool any = false;
  too_long_ = false;
  while (begin_ < end_ || refill()) {
    any = true;
    const char* const from = buffer_.data() + begin_;
    const auto* const newline = static_cast<const char*>(std::memchr(from, '\n', end_ - begin_));
    const std::size_t length = newline ? newline - from : end_ - begin_;
    too_long_ = too_long_ || line.size() + length > kLongestLine;
    if (too_long_) {
      line = std::string();  // frees its memory
    } else {
      line.append(from, length);
    }
    begin_ += length + (newline != nullptr);
    text_bytes_ += length + (newline != nullptr);
    if (newline) break;
  }
  line_ += any;
  return any;
}

std::string LineReader::too_long_message() {
  const std::string most = std::to_string(kLongestLine) + " bytes";
  return "found a line of more than " + most + ", expected at most " + most;
}

bool LineReader::refill() {
  begin_ = end_ = 0;
  if (kind_ == Kind::gzip) {
    refill_gzip();
  } else if (kind_ == Kind::zstd) {
    refill_zstd();
  } else {
    end_ = std::fread(buffer_.data(), 1, buffer_.size(), file_.get());
    bytes_read_ += end_;
    if (std::ferror(file_.get())) throw RunError(path_ + ": reading failed (" + std::strerror(errno) + ")");
  }
  return end_ > 0;
}

void LineReader::refill_gzip() {
  const int got = gzread(gzip_.get(), buffer_.data(), static_cast<unsigned>(buffer_.size()));
  int code = Z_OK;
  const char* const message = gzerror(gzip_.get(), &code);
  // zlib passes through data without a gzip header and returns the partial data of a truncated file.
  if (gzdirect(gzip_.get()) && (got > 0 || gzoffset(gzip_.get()) > 0)) fail_corrupt("found no gzip header");
  if (code == Z_BUF_ERROR) fail_corrupt("truncated gzip data");
  if (got < 0) fail_corrupt(std::string("gzip: ") + message);
  end_ = got;
  bytes_read_ = gzoffset(gzip_.get());
}

void LineReader::refill_zstd() {
  while (end_ == 0) {
    if (zstd_in_.pos == zstd_in_.size) {
      const std::size_t got = std::fread(compressed_.data(), 1, compressed_.size(), file_.get());
      bytes_read_ += got;
      zstd_in_ = {compressed_.data(), got, 0};
      if (got == 0) {
        if (std::ferror(file_.get()))
          throw RunError(path_ + ": reading failed (" + std::strerror(errno) + ")");
        if (in_frame_) fail_corrupt("truncated zstd data");
        return;
      }
    }
    ZSTD_outBuffer out{buffer_.data(), buffer_.size(), 0};
    const std::size_t status = ZSTD_decompressStream(zstd_.get(), &out, &zstd_in_);
    if (ZSTD_isError(status)) fail_corrupt(std::string("zstd: ") + ZSTD_getErrorName(status));
    in_frame_ = status != 0;
    end_ = out.pos;
  }
}

void LineReader::fail_corrupt(const std::string& what) const {
  throw UserError(path_ + ": corrupt after " + std::to_string(text_bytes_) + " bytes of text: " + what);
}

}  // namespace hero
