#pragma once
// Fingerprints of token files, by which a resumed run notices that its data was replaced.
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "io/file_hash.h"

namespace hero {

/// Digests by path. That of an .idx file covers all bytes; that of a .bin file its size and blocks sampled at
/// equal distances, 4 MiB in total, so that it is inexpensive for files of any size.
using TokenFileDigests = std::map<std::string, FileDigest>;

/// Reads PREFIX.idx and PREFIX.bin. UserError if one cannot be read.
TokenFileDigests digest_token_files(const std::string& prefix);

/// Reads the files of all prefixes, with their loss masks if `loss_mask`. UserError if one cannot be read.
TokenFileDigests digest_token_files(std::span<const std::string> prefixes, bool loss_mask = false);

/// Reads what `hero eval` reads: the files of the prefix, and those of its loss mask if there are any.
/// UserError if one cannot be read.
TokenFileDigests digest_evaluated_files(const std::string& prefix);

/// The files with different digests, as "PATH: found ..., expected ...", by path. None if `expected` is
/// empty.
std::map<std::string, std::string> changed_token_files(const TokenFileDigests& found,
                                                       const TokenFileDigests& expected);

/// "120 bytes with sha256 0a1b..."
std::string describe(const FileDigest& digest);

/// {PATH: {"bytes": n, "sha256": hex}}
nlohmann::ordered_json digests_to_json(const TokenFileDigests& digests);

}  // namespace hero
