#include "io/line_reader.h"

#include <cerrno>
#include <cstring>
#include <new>

#include "io/error.h"

namespace hero {

LineReader::LineReader(std::string path) : path_(std::move(path)), buffer_(1 << 17) {
  kind_ = path_.ends_with(".gz") ? Kind::gzip : path_.ends_with(".zst") ? Kind::zstd : Kind::plain;
  file_.reset(std::fopen(path_.c_str(), "rb"));
  if (!file_) throw UserError(path_ + ": cannot be opened (" + std::strerror(errno) + ")");
  if (kind_ == Kind::gzip) {
    gzip_.reset(new z_stream{});
    constexpr int kGzipOnly = 16;  // zlib.h, inflateInit2
    if (inflateInit2(gzip_.get(), MAX_WBITS + kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  if (kind_ == Kind::zstd) zstd_.reset(ZSTD_createDStream());
  if (kind_ != Kind::plain) compressed_.resize(ZSTD_DStreamInSize());
}

int LineReader::end_gzip(z_stream* stream) {
  const int status = inflateEnd(stream);
  delete stream;
  return status;
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

std::size_t LineReader::read_compressed() {
  const std::size_t got = std::fread(compressed_.data(), 1, compressed_.size(), file_.get());
  bytes_read_ += static_cast<int64_t>(got);
  if (std::ferror(file_.get())) throw RunError(path_ + ": reading failed (" + std::strerror(errno) + ")");
  return got;
}

void LineReader::refill_gzip() {
  z_stream& in = *gzip_;
  while (end_ == 0) {
    if (in.avail_in == 0) {
      in.avail_in = static_cast<uInt>(read_compressed());
      in.next_in = reinterpret_cast<Bytef*>(compressed_.data());
      if (in.avail_in == 0) {
        if (in_frame_) fail_corrupt("truncated gzip data");
        return;
      }
    }
    // Zeros may follow a member, as padding to whole blocks.
    for (; any_frame_ && !in_frame_ && in.avail_in > 0 && *in.next_in == 0; --in.avail_in) ++in.next_in;
    if (in.avail_in == 0) continue;
    in_frame_ = true;
    in.next_out = reinterpret_cast<Bytef*>(buffer_.data());
    in.avail_out = static_cast<uInt>(buffer_.size());
    const int status = inflate(&in, Z_NO_FLUSH);
    if (status == Z_STREAM_END) {
      in_frame_ = false;
      any_frame_ = true;
      inflateReset(&in);
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      fail_corrupt(std::string("gzip: ") + (in.msg ? in.msg : zError(status)));
    }
    end_ = buffer_.size() - in.avail_out;
  }
}

void LineReader::refill_zstd() {
  while (end_ == 0) {
    if (zstd_in_.pos == zstd_in_.size) {
      zstd_in_ = {compressed_.data(), read_compressed(), 0};
      if (zstd_in_.size == 0) {
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
