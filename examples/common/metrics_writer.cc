// SPDX-License-Identifier: Apache-2.0
#include "examples/common/metrics_writer.h"

#include <cerrno>
#include <cmath>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "examples/common/json_line.h"
#include "tensor/error.h"

namespace tessera::examples {
namespace {

// The allocator's names with underscores.
const std::array<std::string, kMemoryTagCount>& TagNames() {
  static const auto names = [] {
    std::array<std::string, kMemoryTagCount> out;
    for (size_t tag = 0; tag < out.size(); ++tag) {
      for (const char c : Name(static_cast<MemoryTag>(tag))) out[tag] += c == ' ' ? '_' : c;
    }
    return out;
  }();
  return names;
}

// The engine's -1 says that the norm has no value.
double Norm(double norm) { return norm < 0 ? std::nan("") : norm; }

void AddMemory(const char* name, const std::array<int64_t, kMemoryTagCount>& bytes, JsonLine* line) {
  line->Begin(name);
  for (size_t tag = 0; tag < bytes.size(); ++tag) line->Whole(TagNames()[tag], bytes[tag]);
  line->End();
}

class CsvFields {
 public:
  CsvFields& Whole(int64_t value) {
    AppendWhole(&text_, value);
    text_ += ',';
    return *this;
  }
  CsvFields& Number(double value) {
    if (std::isfinite(value)) AppendNumber(&text_, value);
    text_ += ',';
    return *this;
  }
  std::string Take() {
    text_.back() = '\n';
    return std::move(text_);
  }

 private:
  std::string text_;
};

}  // namespace

std::string CsvHeader() {
  std::string out =
      "step,micro_steps,loss,grad_norm_before_clip,clip_factor,lr,loss_scale,skipped,tokens,tokens_per_s,step_ms,"
      "elapsed_s";
  for (const char* group : {"memory_bytes", "memory_peak_bytes"}) {
    for (const std::string& tag : TagNames()) out += Str(",", group, ".", tag);
  }
  return out + ",memory_peak_total_bytes\n";
}

std::string CsvLine(const StepMetrics& metrics) {
  CsvFields fields;
  fields.Whole(metrics.step)
      .Whole(metrics.micro_steps)
      .Number(metrics.loss)
      .Number(Norm(metrics.grad_norm_before_clip))
      .Number(metrics.clip_factor)
      .Number(metrics.lr)
      .Number(metrics.loss_scale)
      .Whole(metrics.skipped ? 1 : 0)
      .Whole(metrics.tokens)
      .Number(metrics.tokens_per_s)
      .Number(metrics.step_ms)
      .Number(metrics.elapsed_s);
  for (const int64_t bytes : metrics.memory_bytes) fields.Whole(bytes);
  for (const int64_t bytes : metrics.memory_peak_bytes) fields.Whole(bytes);
  return fields.Whole(metrics.memory_peak_total_bytes).Take();
}

std::string JsonLineOf(const StepMetrics& metrics) {
  JsonLine line;
  line.Text("kind", "step")
      .Whole("step", metrics.step)
      .Whole("micro_steps", metrics.micro_steps)
      .Number("loss", metrics.loss)
      .Number("grad_norm_before_clip", Norm(metrics.grad_norm_before_clip))
      .Number("clip_factor", metrics.clip_factor)
      .Number("lr", metrics.lr)
      .Number("loss_scale", metrics.loss_scale)
      .Flag("skipped", metrics.skipped)
      .Whole("tokens", metrics.tokens)
      .Number("tokens_per_s", metrics.tokens_per_s)
      .Number("step_ms", metrics.step_ms)
      .Number("elapsed_s", metrics.elapsed_s);
  AddMemory("memory_bytes", metrics.memory_bytes, &line);
  AddMemory("memory_peak_bytes", metrics.memory_peak_bytes, &line);
  return line.Whole("memory_peak_total_bytes", metrics.memory_peak_total_bytes).Take();
}

std::string JsonLineOf(const ValidationMetrics& metrics) {
  return JsonLine()
      .Text("kind", "validation")
      .Whole("step", metrics.step)
      .Number("validation_loss", metrics.loss)
      .Number("perplexity", std::exp(metrics.loss))
      .Number("elapsed_s", metrics.elapsed_s)
      .Take();
}

std::string JsonLineOf(const SampleMetrics& metrics) {
  return JsonLine()
      .Text("kind", "sample")
      .Whole("step", metrics.step)
      .Number("elapsed_s", metrics.elapsed_s)
      .Text("prompt", metrics.prompt)
      .Text("text", metrics.text)
      .Take();
}

MetricsWriter::MetricsWriter(const std::string& folder)
    : jsonl_(Open(folder + "/metrics.jsonl")),
      csv_(Open(folder + "/metrics.csv")),
      last_flush_(std::chrono::steady_clock::now()) {
  csv_.waiting = CsvHeader();
}

MetricsWriter::~MetricsWriter() {
  Flush();
  for (const File* file : {&jsonl_, &csv_}) {
    if (file->descriptor >= 0) close(file->descriptor);
  }
}

MetricsWriter::File MetricsWriter::Open(const std::string& path) const {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    throw Error(Str("cannot write ", path, ": ", std::error_code(errno, std::generic_category()).message(),
                    "; --run_dir names another place, --norun_dir leaves none"));
  }
  return {.path = path, .descriptor = descriptor};
}

void MetricsWriter::Step(const StepMetrics& metrics) {
  if (jsonl_.descriptor >= 0) jsonl_.waiting += JsonLineOf(metrics);
  if (csv_.descriptor >= 0) csv_.waiting += CsvLine(metrics);
  if (std::chrono::steady_clock::now() - last_flush_ >= std::chrono::seconds(1)) Flush();
}

// Before these there was, and after them there may be, a long time without a step.
void MetricsWriter::Validation(const ValidationMetrics& metrics) {
  jsonl_.waiting += JsonLineOf(metrics);
  Flush();
}

void MetricsWriter::Sample(const SampleMetrics& metrics) {
  jsonl_.waiting += JsonLineOf(metrics);
  Flush();
}

void MetricsWriter::Flush() {
  FlushFile(&jsonl_);
  FlushFile(&csv_);
  last_flush_ = std::chrono::steady_clock::now();
}

void MetricsWriter::FlushFile(File* file) {
  std::string_view rest = file->waiting;
  while (file->descriptor >= 0 && !rest.empty()) {
    const ssize_t written = write(file->descriptor, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      problem_ =
          Str("cannot write ", file->path, " any longer: ", std::error_code(errno, std::generic_category()).message(),
              "; the run goes on without it");
      close(file->descriptor);
      file->descriptor = -1;
      break;
    }
    rest.remove_prefix(static_cast<size_t>(written));
  }
  file->waiting.clear();
}

}  // namespace tessera::examples
