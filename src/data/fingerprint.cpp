#include "data/fingerprint.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/loss_mask.h"
#include "io/error.h"

namespace hero {
namespace {

constexpr uint64_t kSamples = 64, kSampleBytes = 64 << 10;

FileDigest digest_samples(const std::string& path) {
  std::error_code failed;
  const uint64_t size = std::filesystem::file_size(path, failed);
  if (failed) throw UserError(path + ": cannot be read: " + failed.message());
  if (size <= kSamples * kSampleBytes) return hash_file(path);
  std::ifstream stream(path, std::ios::binary);
  std::vector<char> block(kSampleBytes);
  RunningHash hash;
  for (uint64_t i = 0; i < kSamples; ++i) {
    // The first block is at the start and the last one at the end. The product of two factors below 2^58 and
    // 2^6 does not overflow.
    stream.seekg(static_cast<std::streamoff>((size - kSampleBytes) * i / (kSamples - 1)));
    if (!stream.read(block.data(), static_cast<std::streamsize>(block.size())))
      throw UserError(path + ": cannot be read: " + std::strerror(errno));
    hash.add(block.data(), block.size());
  }
  return {size, hash.record().sha256};
}

}  // namespace

TokenFileDigests digest_token_files(const std::string& prefix) {
  return {{prefix + ".idx", hash_file(prefix + ".idx")}, {prefix + ".bin", digest_samples(prefix + ".bin")}};
}

TokenFileDigests digest_token_files(std::span<const std::string> prefixes, bool loss_mask) {
  TokenFileDigests digests;
  for (const std::string& prefix : prefixes) {
    digests.merge(digest_token_files(prefix));
    if (loss_mask) digests.merge(digest_token_files(loss_mask_prefix(prefix)));
  }
  return digests;
}

TokenFileDigests digest_evaluated_files(const std::string& prefix) {
  return digest_token_files(std::span(&prefix, 1),
                            std::filesystem::exists(loss_mask_prefix(prefix) + ".idx"));
}

std::map<std::string, std::string> changed_token_files(const TokenFileDigests& found,
                                                       const TokenFileDigests& expected) {
  std::map<std::string, std::string> changes;
  if (expected.empty()) return changes;
  const auto value_in = [](const TokenFileDigests& digests, const std::string& path) {
    const auto entry = digests.find(path);
    return entry == digests.end() ? "no such file" : describe(entry->second);
  };
  for (const TokenFileDigests* digests : {&found, &expected}) {
    for (const auto& [path, digest] : *digests) {
      const std::string here = value_in(found, path), there = value_in(expected, path);
      if (here != there) changes[path] = path + ": found " + here + ", expected " + there;
    }
  }
  return changes;
}

std::string describe(const FileDigest& digest) {
  return std::to_string(digest.bytes) + " bytes with sha256 " + digest.sha256;
}

nlohmann::ordered_json digests_to_json(const TokenFileDigests& digests) {
  auto object = nlohmann::ordered_json::object();
  for (const auto& [path, digest] : digests)
    object[path] = {{"bytes", digest.bytes}, {"sha256", digest.sha256}};
  return object;
}

}  // namespace hero
