// SPDX-License-Identifier: Apache-2.0
// One block of memory shared by all tensors that view it, with the version counter that those views share.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "tensor/allocator.h"
#include "tensor/device.h"

namespace tessera {

// Says what a block is when the layers above gave it a meaning. Parameter buffers carry one, so that autograd can name
// the parameter in the error for saving a plain tensor that lies in parameter storage.
class StorageLabel {
 public:
  virtual ~StorageLabel() = default;
  virtual std::string ParameterAt(int64_t byte_offset) const = 0;
};

class Storage {
 public:
  Storage(void* data, int64_t bytes, Device device, MemoryTag tag, Allocator* allocator)
      : data_(data), bytes_(bytes), allocator_(allocator), device_(device), tag_(tag) {}
  ~Storage() {
    if (allocator_ != nullptr) allocator_->Free(data_, bytes_, tag_);
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  MemoryTag tag() const { return tag_; }

  // Goes up with every write. A tensor saved for backward remembers the count and refuses a changed one.
  uint32_t version() const { return version_.load(std::memory_order_relaxed); }
  void BumpVersion() { version_.fetch_add(1, std::memory_order_relaxed); }

  const StorageLabel* label() const { return label_; }
  void SetLabel(const StorageLabel* label) { label_ = label; }  // borrowed

 private:
  friend class StorageRef;
  void* data_;
  int64_t bytes_;
  Allocator* allocator_;  // null: the memory is borrowed
  const StorageLabel* label_ = nullptr;
  std::atomic<int32_t> references_{0};
  std::atomic<uint32_t> version_{0};
  Device device_;
  MemoryTag tag_;
};

// A counted reference; copying it shares the block.
class StorageRef {
 public:
  StorageRef() = default;
  explicit StorageRef(Storage* storage) : storage_(storage) { Retain(); }
  StorageRef(const StorageRef& other) : storage_(other.storage_) { Retain(); }
  StorageRef(StorageRef&& other) noexcept : storage_(std::exchange(other.storage_, nullptr)) {}
  StorageRef& operator=(StorageRef other) noexcept {
    std::swap(storage_, other.storage_);
    return *this;
  }
  ~StorageRef() { Drop(); }

  Storage* get() const { return storage_; }
  Storage* operator->() const { return storage_; }
  explicit operator bool() const { return storage_ != nullptr; }
  int32_t use_count() const { return storage_ == nullptr ? 0 : storage_->references_.load(std::memory_order_acquire); }

 private:
  void Retain() const {
    if (storage_ != nullptr) storage_->references_.fetch_add(1, std::memory_order_relaxed);
  }
  void Drop() {
    if (storage_ != nullptr && storage_->references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete storage_;
  }
  Storage* storage_ = nullptr;
};

}  // namespace tessera
