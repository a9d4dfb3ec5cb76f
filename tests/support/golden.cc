// SPDX-License-Identifier: Apache-2.0
#include "tests/support/golden.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>

#include "autograd/tape.h"

namespace tessera::testing {
namespace {

// Calls read(kind, rest of the line) for each line that is not a comment.
void ForEachLine(const std::string& file_name, const std::function<void(const std::string&, std::istream&)>& read) {
  const std::string path = std::string(TESSERA_GOLDEN_DIR) + "/" + file_name;
  std::ifstream file(path);
  if (!file) throw Error(Str("golden: cannot read ", path));
  std::string text;
  for (int number = 1; std::getline(file, text); ++number) {
    if (text.empty() || text[0] == '#') continue;
    std::istringstream line(text);
    std::string kind;
    line >> kind;
    read(kind, line);
    if (!line) throw Error(Str("golden: ", file_name, ":", number, ": the line is too short or of another kind"));
  }
}

Tensor ReadTensor(std::istream& line) {
  int rank = 0;
  line >> rank;
  Shape shape;
  for (int dim = 0; dim < rank; ++dim) {
    int64_t size = 0;
    line >> size;
    shape.push_back(size);
  }
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (double& value : values) line >> value;
  return Tensor::From(values, shape);
}

}  // namespace

GoldenTensors::GoldenTensors(const std::string& file_name) : file_name_(file_name) {
  ForEachLine(file_name, [&](const std::string& kind, std::istream& line) {
    std::string name;
    if (kind != "tensor") return line.setstate(std::ios::failbit);
    line >> name;
    tensors_[name] = ReadTensor(line);
  });
}

const Tensor& GoldenTensors::operator[](const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw Error(Str("golden: ", file_name_, " has no tensor ", name));
  return found->second;
}

void ExpectMatchesGolden(const std::string& op, const std::vector<std::string>& inputs, const OpFunction& f) {
  const GoldenTensors golden("ops.txt");
  const auto near = [](const Tensor& got, const Tensor& expected, double tolerance, const std::string& what) {
    EXPECT_LE(MaxDifference(got, expected), tolerance * std::max(1.0, MaxMagnitude(expected))) << what;
  };
  for (const auto& [dtype, tolerance] : {std::pair(DType::kF64, 1e-14), std::pair(DType::kF32, 2e-6)}) {
    Tape tape;
    std::vector<Tensor> watched;
    for (const std::string& input : inputs) watched.push_back(tape.Watch(CopyTo(golden[op + "." + input], dtype)));
    const std::vector<Input> arguments(watched.begin(), watched.end());
    const Tensor y = f(arguments)[0];
    near(y, golden[op + ".y"], tolerance, Str(op, " ", Name(dtype)));
    tape.Backward(y, CopyTo(golden[op + ".dy"], dtype));
    for (size_t i = 0; i < inputs.size(); ++i) {
      near(tape.Grad(watched[i]), golden[op + ".d" + inputs[i]], tolerance, Str(op, " ", Name(dtype), " d", inputs[i]));
    }
  }
}

GoldenTrace ReadGoldenTrace(const std::string& file_name) {
  GoldenTrace trace;
  ForEachLine(file_name, [&](const std::string& kind, std::istream& line) {
    if (kind == "step") {
      size_t index = 0;
      GoldenTrace::Step step{};
      line >> index >> step.loss >> step.grad_norm >> step.weight_norm;
      if (index != trace.steps.size()) line.setstate(std::ios::failbit);
      trace.steps.push_back(step);
    } else if (kind == "param") {
      std::string path;
      line >> path;
      line >> trace.param_norms[path];
    } else {
      line.setstate(std::ios::failbit);
    }
  });
  return trace;
}

}  // namespace tessera::testing
