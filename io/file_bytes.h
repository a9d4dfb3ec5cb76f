// SPDX-License-Identifier: Apache-2.0
// The bytes of a file, read-only. A regular file is mapped, so a large one costs no memory until it is read; anything
// else (a pipe) is read to its end.
//
//   absl::StatusOr<std::shared_ptr<const FileBytes>> file = FileBytes::Open("text.txt");
//   (*file)->bytes()
//
// A mapped file must not be shortened while it is in use.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::io {

class FileBytes {
 public:
  static absl::StatusOr<std::shared_ptr<const FileBytes>> Open(const std::string& path);
  explicit FileBytes(std::vector<uint8_t> contents) : contents_(std::move(contents)), bytes_(contents_) {}
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  std::span<const uint8_t> bytes() const { return bytes_; }

 private:
  FileBytes(void* mapping, size_t size);

  void* mapping_ = nullptr;
  std::vector<uint8_t> contents_;
  std::span<const uint8_t> bytes_;
};

}  // namespace tessera::io
