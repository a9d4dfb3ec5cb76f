// SPDX-License-Identifier: Apache-2.0
#include "io/text.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "tensor/error.h"

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

// Regular files below `folder`, sorted by their bytes: the same order on every machine, whatever the locale.
absl::StatusOr<std::vector<std::string>> FilesBelow(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error);
  for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().starts_with('.')) {
      it.disable_recursion_pending();
    } else if (it->symlink_status(error).type() == fs::file_type::regular) {
      paths.push_back(it->path().string());
    }
  }
  if (error) return absl::UnavailableError(Str("cannot list \"", folder, "\": ", error.message()));
  std::sort(paths.begin(), paths.end());
  return paths;
}

absl::StatusOr<Corpus> ReadFolder(const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> paths = FilesBelow(folder);
  if (!paths.ok()) return paths.status();
  Corpus corpus;
  std::vector<uint8_t> joined;
  for (const std::string& path : *paths) {
    const auto file = FileBytes::Open(path);
    if (!file.ok()) return file.status();
    const std::span<const uint8_t> bytes = (*file)->bytes();
    if (bytes.empty()) continue;
    if (std::memchr(bytes.data(), kDocumentSeparator, bytes.size()) != nullptr) {
      corpus.notices.push_back(Str("skipped \"", path, "\": it has a zero byte, so it is not text"));
      continue;
    }
    if (corpus.file_count > 0) joined.push_back(kDocumentSeparator);
    joined.insert(joined.end(), bytes.begin(), bytes.end());
    ++corpus.file_count;
  }
  if (corpus.file_count == 0) {
    return absl::InvalidArgumentError(Str("\"", folder, "\" has no text: ", paths->size(), " files, ",
                                          corpus.notices.size(), " of them binary, the others empty"));
  }
  corpus.contents = std::make_shared<const FileBytes>(std::move(joined));
  return corpus;
}

}  // namespace

absl::StatusOr<Corpus> ReadCorpus(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return ReadFolder(path);
  auto file = FileBytes::Open(path);
  if (!file.ok()) return file.status();
  if ((*file)->bytes().empty()) return absl::InvalidArgumentError(Str("\"", path, "\" is empty"));
  return Corpus{.contents = *std::move(file), .file_count = 1, .notices = {}};
}

absl::StatusOr<TextDatasets> OpenText(const std::string& path, const TextOptions& options) {
  absl::StatusOr<Corpus> corpus = ReadCorpus(path);
  if (!corpus.ok()) return corpus.status();
  auto datasets = SplitText(*std::move(corpus), options);
  if (datasets.ok()) return datasets;
  return absl::Status(datasets.status().code(), Str("\"", path, "\": ", std::string(datasets.status().message())));
}

absl::StatusOr<TextDatasets> SplitText(Corpus corpus, const TextOptions& options) {
  const double fraction = options.validation_fraction;
  if (!(fraction > 0 && fraction < 1)) {
    return absl::InvalidArgumentError(
        Str("the validation fraction is ", fraction, ", expected a number between 0 and 1"));
  }
  const std::span<const uint8_t> bytes = corpus.contents->bytes();
  const int64_t total = static_cast<int64_t>(bytes.size());
  const TokenDatasetOptions dataset_options{.sequence_tokens = options.sequence_tokens, .vocab_size = kByteVocabulary};
  // The text as a whole first: its error names the length that the user knows.
  const auto whole = TokenDataset::Create(bytes, corpus.contents, dataset_options);
  if (!whole.ok()) return whole.status();
  const int64_t least = options.sequence_tokens + 1;
  const int64_t validation = std::max(least, static_cast<int64_t>(static_cast<double>(total) * fraction));
  if (total - validation < least) {
    return absl::InvalidArgumentError(Str("the text has ", total, " tokens; a training and a validation part with ",
                                          "sequence length ", options.sequence_tokens, " need at least ", 2 * least));
  }
  const size_t cut = static_cast<size_t>(total - validation);
  auto train = TokenDataset::Create(bytes.first(cut), corpus.contents, dataset_options);
  if (!train.ok()) return train.status();
  auto rest = TokenDataset::Create(bytes.subspan(cut), corpus.contents, dataset_options);
  if (!rest.ok()) return rest.status();
  return TextDatasets{.train = *std::move(train), .validation = *std::move(rest), .corpus = std::move(corpus)};
}

}  // namespace tessera::io
