// SPDX-License-Identifier: Apache-2.0
// Names the parameter that a place in a unit's flat buffer belongs to: how autograd can say which parameter's storage a
// plain tensor lies in.
#pragma once

#include <string>
#include <vector>

#include "nn/flat_layout.h"
#include "nn/parameter.h"
#include "tensor/storage.h"

namespace tessera::nn {

class FlatBufferLabel final : public StorageLabel {
 public:
  // `all` lists all parameters in the layout's numbering; both are copied.
  FlatBufferLabel(std::vector<Parameter*> all, FlatSegment segment, int64_t item_size)
      : all_(std::move(all)), segment_(std::move(segment)), item_size_(item_size) {}

  std::string ParameterAt(int64_t byte_offset) const override {
    const int64_t element = byte_offset / item_size_;
    std::string path = "?";
    for (const FlatParam& param : segment_.params) {
      if (param.offset <= element) path = all_[static_cast<size_t>(param.param)]->path();
    }
    return path;
  }

 private:
  std::vector<Parameter*> all_;
  FlatSegment segment_;
  int64_t item_size_;
};

}  // namespace tessera::nn
