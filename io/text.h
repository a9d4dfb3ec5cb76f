// SPDX-License-Identifier: Apache-2.0
// Text to train a byte-level model on: a file, or all files of a folder, cut into a training and a validation part.
//
//   absl::StatusOr<TextDatasets> text = OpenText("books/", {.sequence_tokens = 128});
//   text->train, text->validation       // TokenDataset; tokens are bytes, so the vocabulary has 256
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/file_bytes.h"
#include "io/token_dataset.h"

namespace tessera::io {

inline constexpr int64_t kByteVocabulary = 256;

// What is read between two files of a folder. Text has no such byte, so a model can learn that a document ends here,
// and no text can imitate it.
inline constexpr uint8_t kDocumentSeparator = 0;

struct Corpus {
  std::shared_ptr<const FileBytes> contents;
  int64_t file_count = 0;
  std::vector<std::string> notices;  // what was passed over, and why
};

// A file is taken as it is. Of a folder, all regular files below it in the order of their paths; links, hidden files
// and folders, and empty files are passed over; so is, with a notice, what has a zero byte and therefore is not text.
absl::StatusOr<Corpus> ReadCorpus(const std::string& path);

struct TextOptions {
  int64_t sequence_tokens = 128;
  double validation_fraction = 0.1;  // the end of the text; at least one sequence
};

struct TextDatasets {
  TokenDataset train, validation;
  Corpus corpus;
};

absl::StatusOr<TextDatasets> OpenText(const std::string& path, const TextOptions& options);
absl::StatusOr<TextDatasets> SplitText(Corpus corpus, const TextOptions& options);

}  // namespace tessera::io
