#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "hf/safetensors.h"
#include "io/error.h"
#include "io/json.h"

namespace hero {
namespace {

const char* map_file(const std::filesystem::path& path, size_t& size) {
  const std::string file = path.string();
  const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // do not block on a pipe
  if (descriptor < 0) throw UserError(file + ": cannot be read: " + std::strerror(errno));
  struct stat status{};
  const bool regular = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  size = regular ? static_cast<size_t>(status.st_size) : 0;
  void* address = size == 0 ? nullptr : mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int reason = errno;
  close(descriptor);
  if (!regular) throw UserError(file + ": not a regular file, expected a safetensors file");
  if (address == MAP_FAILED) throw RunError(file + ": cannot be memory-mapped: " + std::strerror(reason));
  return static_cast<const char*>(address);
}

}  // namespace

void SafetensorsFile::Unmap::operator()(const char* address) const {
  munmap(const_cast<char*>(address), size);
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : mapping_(nullptr, Unmap{0}) {
  const std::string file = path.string();
  size_t size = 0;
  const char* bytes = map_file(path, size);
  mapping_ = {bytes, Unmap{size}};
  SafetensorsContents contents = parse_safetensors({bytes, size}, file);
  tensors_ = std::move(contents.tensors);
  metadata_ = std::move(contents.metadata);
  for (size_t i = 0; i < tensors_.size(); ++i) index_[tensors_[i].name] = i;
}

const TensorView* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

ShardedReader::ShardedReader(const std::filesystem::path& folder, const std::string& name) {
  const std::filesystem::path single = folder / (name + ".safetensors"),
                              index = single.string() + ".index.json";
  if (!std::filesystem::exists(single) && std::filesystem::exists(index)) {
    read_index(folder, index);
    return;
  }
  if (!std::filesystem::exists(single)) {
    throw UserError(folder.string() + ": found neither " + single.filename().string() + " nor " +
                    index.filename().string() + ", expected one of them");
  }
  files_.emplace_back(single);
  for (const TensorView& tensor : files_[0].tensors()) tensors_[tensor.name] = &tensor;
}

void ShardedReader::read_index(const std::filesystem::path& folder, const std::filesystem::path& index) {
  const std::string file = index.string();
  std::ostringstream text;
  if (!(text << std::ifstream(index, std::ios::binary).rdbuf()))
    throw UserError(file + ": cannot be read or is empty");
  const auto weight_map = parse_index(text.str(), file);
  std::map<std::string, size_t> shards;
  for (const auto& [tensor, shard] : weight_map) {
    if (shards.emplace(shard, files_.size()).second) files_.emplace_back(folder / shard);
  }
  for (const auto& [tensor, shard] : weight_map) {
    tensors_[tensor] = files_[shards[shard]].find(tensor);
    if (!tensors_[tensor]) {
      throw UserError((folder / shard).string() + ": entry " + format_value(tensor) +
                      " is missing, expected by " + index.filename().string());
    }
  }
}

std::vector<std::string> ShardedReader::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

const TensorView* ShardedReader::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

}  // namespace hero
