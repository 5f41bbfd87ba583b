#include "optim/state_storage.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "io/error.h"

namespace hero {
namespace {

std::string system_error(int code) { return std::generic_category().message(code); }

// A file that disappears with its last mapping. Not all file systems have files without names.
int open_unnamed(const std::filesystem::path& folder) {
  const int unnamed = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (unnamed >= 0 || errno == ENOENT || errno == ENOTDIR || errno == EACCES) return unnamed;
  std::string name = folder / "optimizer-state-XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

// `size` zero bytes. The blocks are reserved: a full disk would otherwise end the run with SIGBUS.
void* map_zeros(const std::filesystem::path& folder, size_t size) {
  const auto fail = [&](int code) {
    throw RunError("optim.offload_folder: cannot reserve " + std::to_string(size) + " bytes in " +
                   folder.string() + ": " + system_error(code));
  };
  const int file = open_unnamed(folder);
  if (file < 0) fail(errno);
  const int reserved = ::posix_fallocate(file, 0, static_cast<off_t>(size));
  void* const data =
      reserved == 0 ? ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  const int code = reserved == 0 ? errno : reserved;
  ::close(file);
  if (data == MAP_FAILED) fail(code);
  return data;
}

}  // namespace

StateStorage::StateStorage(std::filesystem::path folder, at::Device device) : folder_(std::move(folder)) {
  if (!in_files()) return;
  const std::string found = "optim.offload_folder: found " + folder_.string();
  if (!device.is_cpu()) throw UserError(found + ", expected \"\" with the device " + device.str());
  const int file = open_unnamed(folder_);
  if (file < 0)
    throw UserError(found + " (" + system_error(errno) + "), expected a folder that can be written");
  ::close(file);
}

at::Tensor StateStorage::zeros_like(const at::Tensor& values) const {
  if (!in_files() || values.numel() == 0) return at::zeros_like(values, at::MemoryFormat::Contiguous);
  const size_t size = values.nbytes();
  void* const data = map_zeros(folder_, size);
  return at::from_blob(
      data, values.sizes(), [size](void* mapped) { ::munmap(mapped, size); },
      values.options().requires_grad(false));
}

at::Tensor StateStorage::copy_of(const at::Tensor& values) const {
  if (!in_files()) return values.clone(at::MemoryFormat::Contiguous);
  return zeros_like(values).copy_(values);
}

}  // namespace hero
