// SPDX-License-Identifier: Apache-2.0
#include "io/file_bytes.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tensor/error.h"

namespace tessera::io {
namespace {

absl::Status SystemError(const std::string& path, const char* doing) {
  return absl::ErrnoToStatus(errno, Str("cannot ", doing, " \"", path, "\""));
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

}  // namespace

FileBytes::FileBytes(void* mapping, size_t size)
    : mapping_(mapping), bytes_(static_cast<const uint8_t*>(mapping), size) {}

FileBytes::~FileBytes() {
  if (mapping_ != nullptr) munmap(mapping_, bytes_.size());
}

absl::StatusOr<std::shared_ptr<const FileBytes>> FileBytes::Open(const std::string& path) {
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return SystemError(path, "open");
  struct stat info = {};
  if (fstat(file.fd, &info) != 0) return SystemError(path, "open");
  if (S_ISREG(info.st_mode) && info.st_size > 0) {
    const size_t size = static_cast<size_t>(info.st_size);
    void* mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (mapping == MAP_FAILED) return SystemError(path, "map");
    return std::shared_ptr<const FileBytes>(new FileBytes(mapping, size));
  }
  std::vector<uint8_t> contents;
  std::vector<uint8_t> block(1 << 16);
  while (true) {
    const ssize_t count = read(file.fd, block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError(path, "read");
    if (count == 0) break;
    contents.insert(contents.end(), block.begin(), block.begin() + count);
  }
  return std::make_shared<const FileBytes>(std::move(contents));
}

}  // namespace tessera::io
