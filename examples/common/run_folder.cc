// SPDX-License-Identifier: Apache-2.0
#include "examples/common/run_folder.h"

#include <cctype>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "tensor/error.h"

namespace tessera::examples {
namespace {

namespace fs = std::filesystem;

std::string Reason(int error) { return std::error_code(error, std::generic_category()).message(); }

}  // namespace

std::string DefaultRunFolder(std::string_view name, std::time_t now) {
  std::tm local = {};
  localtime_r(&now, &local);
  char time[32];
  std::strftime(time, sizeof time, "%Y-%m-%d_%H-%M-%S", &local);
  std::string out = Str("runs/", time, "_");
  for (const char c : name) out += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' ? c : '-';
  return out;
}

std::string MakeRunFolder(const std::string& wanted) {
  std::error_code error;
  std::string path = wanted;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::string base = path;
  if (const fs::path parent = fs::path(path).parent_path(); !parent.empty()) fs::create_directories(parent, error);
  // Two runs may begin in the same second: whoever makes the folder has it.
  for (int counter = 2; !error && !fs::create_directory(path, error) && !error; ++counter) {
    if (fs::is_empty(path, error) || error) break;
    path = Str(base, "-", counter);
  }
  if (!error && access(path.c_str(), W_OK | X_OK) != 0) error = std::error_code(errno, std::generic_category());
  if (error) {
    throw Error(Str("cannot make the run folder ", path, ": ", error.message(),
                    "; --run_dir names another place, --norun_dir leaves none"));
  }
  return path;
}

void WriteFileAtomically(const std::string& path, std::string_view text) {
  const std::string fresh = path + ".new";
  const int file = open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) throw Error(Str("cannot write ", fresh, ": ", Reason(errno)));
  while (!text.empty()) {
    const ssize_t written = write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      close(file);
      unlink(fresh.c_str());
      throw Error(Str("cannot write ", fresh, ": ", Reason(error)));
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  if (close(file) != 0 || std::rename(fresh.c_str(), path.c_str()) != 0) {
    throw Error(Str("cannot write ", path, ": ", Reason(errno)));
  }
}

}  // namespace tessera::examples
