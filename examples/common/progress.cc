// SPDX-License-Identifier: Apache-2.0
#include "examples/common/progress.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "examples/common/format.h"
#include "tensor/error.h"

namespace tessera::examples {

std::string StepLine(const StepReport& report, int columns) {
  struct Field {
    std::string text;
    int drop_order;  // the highest goes first
  };
  const double left_s = report.fraction > 0 ? report.elapsed_s * (1 - report.fraction) / report.fraction : std::nan("");
  const std::string of = report.max_steps > 0 ? Str("/", report.max_steps) : "";
  std::vector<Field> fields = {{Str("step ", report.step, of), 0},
                               {Str("loss ", Fixed(report.loss, 3)), 0},
                               {Str("gnorm ", Fixed(report.grad_norm, 2)), 4},
                               {Str("lr ", Short(report.lr)), 3},
                               {Str(Compact(report.tokens_per_s), " tok/s"), 2},
                               {Milliseconds(report.step_ms), 5},
                               {Str("ETA ", Duration(left_s)), 1}};
  while (true) {
    std::string line;
    for (const Field& field : fields) line += Str(line.empty() ? "" : " | ", field.text);
    if (columns <= 0 || Columns(line) <= columns) return line;
    const auto last = std::max_element(fields.begin(), fields.end(),
                                       [](const Field& a, const Field& b) { return a.drop_order < b.drop_order; });
    if (last->drop_order == 0) return FitColumns(line, columns);
    fields.erase(last);
  }
}

std::string Bar(double fraction, double elapsed_s, int columns) {
  fraction = std::clamp(fraction, 0.0, 1.0);
  const double total_s = fraction > 0 ? elapsed_s / fraction : std::nan("");
  const std::string percent = Str(static_cast<int>(fraction * 100));
  const std::string text =
      Str(std::string(4 - percent.size(), ' '), percent, " %  ", Duration(elapsed_s), " of about ", Duration(total_s));
  const int inside = columns - 2 - Columns(text);
  if (inside < 5) return FitColumns(text.substr(text.find_first_not_of(' ')), columns);
  std::string bar(static_cast<size_t>(inside), ' ');
  const int filled = static_cast<int>(fraction * inside);
  std::fill_n(bar.begin(), filled, '=');
  if (filled < inside) bar[static_cast<size_t>(filled)] = '>';
  return Str("[", bar, "]", text);
}

std::string ValidationLine(int64_t step, double loss, bool is_best, const char* unit) {
  return Str("step ", step, " | validation loss ", Fixed(loss, 3), " ", unit, " | perplexity ",
             Fixed(std::exp(loss), 2), is_best ? " | best so far" : "");
}

void Progress::Step(const StepReport& report) {
  last_ = report;
  has_step_ = true;
  is_last_shown_ = false;
  const double interval_s = terminal_.interactive ? 0.1 : plain_interval_s_;
  if (last_shown_s_ >= 0 && report.elapsed_s - last_shown_s_ < interval_s) return;
  last_shown_s_ = report.elapsed_s;
  is_last_shown_ = true;
  if (terminal_.interactive) {
    Draw();
  } else {
    std::fprintf(out_, "%s\n", StepLine(report, terminal_.columns).c_str());
  }
  std::fflush(out_);
}

void Progress::Print(const std::string& line) {
  Erase();
  std::fprintf(out_, "%s\n", FitColumns(line, terminal_.columns).c_str());
  if (terminal_.interactive && has_step_) Draw();
  std::fflush(out_);
}

void Progress::Finish() {
  Erase();
  if (has_step_ && (terminal_.interactive || !is_last_shown_)) {
    std::fprintf(out_, "%s\n", StepLine(last_, terminal_.columns).c_str());
  }
  has_step_ = false;
  is_last_shown_ = true;
  std::fflush(out_);
}

void Progress::Draw() {
  Erase();
  if (const int columns = Terminal::Of(out_).columns; columns > 0) terminal_.columns = columns;  // it may be resized
  const int columns = std::max(terminal_.columns - 1, 1);  // a full line would make some terminals wrap
  const char* dim = terminal_.color ? "\x1b[2m" : "";
  const char* plain = terminal_.color ? "\x1b[0m" : "";
  std::fprintf(out_, "%s\n%s%s%s", StepLine(last_, columns).c_str(), dim,
               Bar(last_.fraction, last_.elapsed_s, columns).c_str(), plain);
  drawn_ = true;
}

void Progress::Erase() {
  if (drawn_) std::fputs("\r\x1b[2K\x1b[1A\x1b[2K", out_);
  drawn_ = false;
}

}  // namespace tessera::examples
