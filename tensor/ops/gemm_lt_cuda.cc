// SPDX-License-Identifier: Apache-2.0
// The product through cuBLASLt. It thinks in columns: our row-major C = A B is its C^T = B^T A^T, with the same memory.
//
// An algorithm is the first one that cuBLASLt's heuristic names for a problem, kept for the life of the process: the same
// shapes give the same bits, and nothing is timed. f32 is true f32 (no TF32), and sums of 16-bit inputs stay in f32
// until they are rounded once. Its GELU serves 16-bit results only: how exact it is in f32 is not promised anywhere.
#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>

#include <cublasLt.h>

#include "tensor/cuda/runtime.cuh"
#include "tensor/ops/gemm_cuda.h"

namespace tessera::ops::cuda {
namespace {

void CheckLt(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(Str("matmul: ", call, " failed with ", static_cast<int>(status), ", ", cublasLtGetStatusName(status),
                  ": ", cublasLtGetStatusString(status)));
}
#define TESSERA_LT_CALL(call) CheckLt((call), #call)

cudaDataType_t LtType(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kF64:
      return CUDA_R_64F;
    default:
      return CUDA_R_32F;
  }
}

// One matrix as cuBLASLt sees it: column by column, perhaps to be transposed.
struct LtMatrix {
  const void* data;  // of the first matrix of the batch
  DType dtype;
  int64_t rows, cols, ld;
  bool transposed;
  int64_t batch_stride;

  uint32_t alignment() const {
    const uintptr_t address = reinterpret_cast<uintptr_t>(data);
    return static_cast<uint32_t>(address == 0 ? 256 : std::min<uintptr_t>(address & -address, 256));
  }
};

const void* At(const void* data, DType dtype, int64_t offset) {
  return static_cast<const char*>(data) + offset * ItemSize(dtype);
}

// The matrix with `rows` x `cols` whose element (r, c) lies at r * row_stride + c * col_stride.
std::optional<LtMatrix> AsLt(const ConstView& view, int64_t rows, int64_t row_stride, int64_t cols, int64_t col_stride,
                             int64_t batch_stride) {
  const void* data = At(view.data, view.dtype, view.layout.offset());
  if (rows == 1 || row_stride == 1) {
    const int64_t ld = cols == 1 ? rows : col_stride;
    if (ld >= rows) return LtMatrix{data, view.dtype, rows, cols, ld, false, batch_stride};
  }
  if (cols == 1 || col_stride == 1) {
    const int64_t ld = rows == 1 ? cols : row_stride;
    if (ld >= cols) return LtMatrix{data, view.dtype, cols, rows, ld, true, batch_stride};
  }
  return std::nullopt;
}

bool TakesTypes(const GemmArgs& args) {
  const DType in = args.a.dtype, out = args.c.dtype;
  if (args.b.dtype != in) return false;
  return out == in || (IsLowPrecision(in) && out == DType::kF32);
}

// GELU's input: cuBLASLt wants 16-byte rows of c's dtype.
bool TakesPreActivation(const GemmArgs& args) {
  const View& s = args.pre_activation;
  const int rows = s.rank() - 2, cols = s.rank() - 1;
  return s.dtype == args.c.dtype && (s.size(cols) == 1 || s.stride(cols) == 1) && s.stride(rows) % 8 == 0 &&
         s.stride(rows) >= s.size(cols) &&
         reinterpret_cast<uintptr_t>(At(s.data, s.dtype, s.layout.offset())) % 16 == 0;
}

// False: not as the contract has it.
bool TakesEpilogue(const GemmArgs& args, const GemmBatch& batch, bool c_is_transposed) {
  const bool bias = args.bias.present(), pre = args.pre_activation.present();
  if (!bias && !pre && !args.gelu) return true;
  if (args.c.dtype == DType::kF64 || batch.rank > 0 || c_is_transposed) return false;
  if (args.gelu && !IsLowPrecision(args.c.dtype)) return false;
  if (bias && (args.bias.dtype != args.c.dtype || (args.bias.size(0) > 1 && args.bias.stride(0) != 1))) return false;
  return !pre || (args.gelu && TakesPreActivation(args));
}

cublasLtEpilogue_t EpilogueOf(const GemmArgs& args) {
  int epilogue = args.gelu ? CUBLASLT_EPILOGUE_GELU : CUBLASLT_EPILOGUE_DEFAULT;
  if (args.pre_activation.present()) epilogue = CUBLASLT_EPILOGUE_GELU_AUX;
  if (args.bias.present()) epilogue = args.gelu ? epilogue | CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_BIAS;
  return static_cast<cublasLtEpilogue_t>(epilogue);
}

struct Problem {
  LtMatrix a, b, c;
  int64_t batch_count;
  cublasLtEpilogue_t epilogue;
  const void* bias;
  void* pre_activation;
  int64_t pre_activation_ld;

  uint32_t c_alignment() const {  // cuBLASLt treats the bias as part of the result
    return bias == nullptr ? c.alignment() : std::min(c.alignment(), LtMatrix{.data = bias}.alignment());
  }
  using Key = std::array<int64_t, 23>;
  Key ToKey(int device) const {
    return {device,
            a.rows,
            a.cols,
            a.ld,
            a.transposed,
            a.batch_stride,
            a.alignment(),
            b.rows,
            b.cols,
            b.ld,
            b.transposed,
            b.batch_stride,
            b.alignment(),
            c.rows,
            c.cols,
            c.ld,
            c.batch_stride,
            c_alignment(),
            batch_count,
            epilogue,
            pre_activation_ld,
            static_cast<int64_t>(a.dtype),
            static_cast<int64_t>(c.dtype)};
  }
};

struct LtDescriptors {
  cublasLtMatmulDescOpaque_t matmul;
  cublasLtMatrixLayoutOpaque_t a, b, c;
};

void InitLayout(cublasLtMatrixLayoutOpaque_t* layout, const LtMatrix& matrix, int64_t batch_count) {
  TESSERA_LT_CALL(cublasLtMatrixLayoutInit(layout, LtType(matrix.dtype), static_cast<uint64_t>(matrix.rows),
                                           static_cast<uint64_t>(matrix.cols), matrix.ld));
  if (batch_count == 1) return;
  const int32_t count = static_cast<int32_t>(batch_count);
  TESSERA_LT_CALL(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
  TESSERA_LT_CALL(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                   &matrix.batch_stride, sizeof matrix.batch_stride));
}

template <class T>
void SetAttribute(cublasLtMatmulDescOpaque_t* desc, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  TESSERA_LT_CALL(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value));
}

void InitDescriptors(LtDescriptors* d, const Problem& problem) {
  const bool wide = problem.c.dtype == DType::kF64;
  TESSERA_LT_CALL(cublasLtMatmulDescInit(&d->matmul, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                         wide ? CUDA_R_64F : CUDA_R_32F));
  const auto operation = [](bool transposed) { return static_cast<int32_t>(transposed ? CUBLAS_OP_T : CUBLAS_OP_N); };
  SetAttribute(&d->matmul, CUBLASLT_MATMUL_DESC_TRANSA, operation(problem.a.transposed));
  SetAttribute(&d->matmul, CUBLASLT_MATMUL_DESC_TRANSB, operation(problem.b.transposed));
  SetAttribute(&d->matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(problem.epilogue));
  if (problem.bias != nullptr) {
    SetAttribute(&d->matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, problem.bias);
    SetAttribute(&d->matmul, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(LtType(problem.c.dtype)));
  }
  if (problem.pre_activation != nullptr) {
    SetAttribute(&d->matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, problem.pre_activation);
    SetAttribute(&d->matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, problem.pre_activation_ld);
  }
  InitLayout(&d->a, problem.a, problem.batch_count);
  InitLayout(&d->b, problem.b, problem.batch_count);
  InitLayout(&d->c, problem.c, problem.batch_count);
}

// The handles, and the algorithms found so far; shared by all threads.
class LtLibrary {
 public:
  static LtLibrary& Get() {
    static LtLibrary& library = *new LtLibrary();
    return library;
  }
  cublasLtHandle_t Handle(int device) {  // the device is current
    const std::lock_guard lock(mutex_);
    cublasLtHandle_t& handle = handles_[device];
    if (handle == nullptr) TESSERA_LT_CALL(cublasLtCreate(&handle));
    return handle;
  }
  // Null: cuBLASLt has no algorithm for it.
  const cublasLtMatmulAlgo_t* Algorithm(cublasLtHandle_t handle, int device, const Problem& problem, LtDescriptors* d) {
    const Problem::Key key = problem.ToKey(device);
    const std::lock_guard lock(mutex_);
    auto found = algorithms_.find(key);
    if (found == algorithms_.end()) found = algorithms_.emplace(key, Ask(handle, problem, d)).first;
    return found->second ? &*found->second : nullptr;
  }

 private:
  static std::optional<cublasLtMatmulAlgo_t> Ask(cublasLtHandle_t handle, const Problem& problem, LtDescriptors* d);

  std::mutex mutex_;
  std::map<int, cublasLtHandle_t> handles_;
  std::map<Problem::Key, std::optional<cublasLtMatmulAlgo_t>> algorithms_;
};

std::optional<cublasLtMatmulAlgo_t> LtLibrary::Ask(cublasLtHandle_t handle, const Problem& problem, LtDescriptors* d) {
  cublasLtMatmulPreferenceOpaque_t preference;
  TESSERA_LT_CALL(cublasLtMatmulPreferenceInit(&preference));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    TESSERA_LT_CALL(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(internal::CudaQueue::kWorkspaceBytes));
  // Parts of K are never added up in 16 bits.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, problem.a.alignment());
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, problem.b.alignment());
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, problem.c.alignment());
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, problem.c_alignment());
  cublasLtMatmulHeuristicResult_t result;
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, &d->matmul, &d->a, &d->b, &d->c, &d->c, &preference, 1, &result, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return std::nullopt;
  CheckLt(status, "cublasLtMatmulAlgoGetHeuristic");
  if (count == 0 || result.state != CUBLAS_STATUS_SUCCESS) return std::nullopt;
  return result.algo;
}

// All problems of one call have the same key but for the pointers: the first one's algorithm is checked for each.
bool Multiply(const internal::LaunchScope& scope, int device, const Problem& problem, double alpha, bool accumulate) {
  LtDescriptors d;
  InitDescriptors(&d, problem);
  LtLibrary& library = LtLibrary::Get();
  const cublasLtHandle_t handle = library.Handle(device);
  const cublasLtMatmulAlgo_t* algorithm = library.Algorithm(handle, device, problem, &d);
  if (algorithm == nullptr) return false;
  const double beta = accumulate ? 1 : 0;
  const float alpha_single = static_cast<float>(alpha), beta_single = static_cast<float>(beta);
  const bool wide = problem.c.dtype == DType::kF64;
  const void* scale_a = wide ? static_cast<const void*>(&alpha) : &alpha_single;
  const void* scale_c = wide ? static_cast<const void*>(&beta) : &beta_single;
  void* c = const_cast<void*>(problem.c.data);
  TESSERA_LT_CALL(cublasLtMatmul(handle, &d.matmul, scale_a, problem.a.data, &d.a, problem.b.data, &d.b, scale_c, c,
                                 &d.c, c, &d.c, algorithm, scope.Workspace(),
                                 static_cast<size_t>(internal::CudaQueue::kWorkspaceBytes), scope.stream()));
  return true;
}

// The whole batch but its last dim, which cuBLASLt walks itself.
bool MultiplyBatch(const internal::LaunchScope& scope, int device, Problem problem, const GemmArgs& args,
                   const GemmBatch& batch) {
  int64_t outer = 1;
  for (int dim = 0; dim + 1 < batch.rank; ++dim) outer *= batch.sizes[dim];
  const Problem first = problem;
  for (int64_t i = 0; i < outer; ++i) {
    int64_t rest = i, a = 0, b = 0, c = 0;
    for (int dim = batch.rank - 2; dim >= 0; --dim) {
      const int64_t index = rest % batch.sizes[dim];
      rest /= batch.sizes[dim];
      a += index * batch.strides[GemmBatch::kA][dim];
      b += index * batch.strides[GemmBatch::kB][dim];
      c += index * batch.strides[GemmBatch::kC][dim];
    }
    // problem.a is our b: see the top.
    problem.a.data = At(first.a.data, first.a.dtype, b);
    problem.b.data = At(first.b.data, first.b.dtype, a);
    problem.c.data = At(first.c.data, first.c.dtype, c);
    if (Multiply(scope, device, problem, args.alpha, args.accumulate)) continue;
    if (i == 0) return false;
    throw Error("matmul: cuBLASLt takes the first matrix of a batch and not a later one, which is less aligned");
  }
  return true;
}

GemmArgs Transposed(const GemmArgs& args) {
  GemmArgs result = args;
  result.a = args.b;
  result.b = args.a;
  result.a.layout = args.b.layout.Transpose(-2, -1);
  result.b.layout = args.a.layout.Transpose(-2, -1);
  result.c.layout = args.c.layout.Transpose(-2, -1);
  return result;
}

}  // namespace

bool GemmLt(const GemmArgs& args) {
  const int rank = args.c.rank();
  const int64_t m = args.c.size(rank - 2), n = args.c.size(rank - 1);
  const bool dense_rows = n == 1 || args.c.stride(rank - 1) == 1, dense_cols = m == 1 || args.c.stride(rank - 2) == 1;
  if (!dense_rows && !dense_cols) return false;
  const bool c_is_transposed = !dense_rows;
  const GemmArgs work = c_is_transposed ? Transposed(args) : args;
  const GemmBatch batch = JoinBatch(work);
  if (!TakesTypes(work) || !TakesEpilogue(work, batch, c_is_transposed)) return false;
  const ConstView &a = work.a, &b = work.b;
  const ConstView c = work.c;
  const int64_t rows = c.size(rank - 2), cols = c.size(rank - 1), inner = a.size(a.rank() - 1);
  const int last = batch.rank - 1;
  const auto batch_stride = [&](int operand) { return batch.rank == 0 ? 0 : batch.strides[operand][last]; };
  const auto lt_a = AsLt(b, cols, b.stride(b.rank() - 1), inner, b.stride(b.rank() - 2), batch_stride(GemmBatch::kB));
  const auto lt_b = AsLt(a, inner, a.stride(a.rank() - 1), rows, a.stride(a.rank() - 2), batch_stride(GemmBatch::kA));
  const auto lt_c = AsLt(c, cols, c.stride(rank - 1), rows, c.stride(rank - 2), batch_stride(GemmBatch::kC));
  if (!lt_a || !lt_b || !lt_c || lt_c->transposed) return false;
  const int64_t batch_count = batch.rank == 0 ? 1 : batch.sizes[last];
  if (batch_count > INT32_MAX) return false;
  const View& s = work.pre_activation;
  const Problem problem{
      .a = *lt_a,
      .b = *lt_b,
      .c = *lt_c,
      .batch_count = batch_count,
      .epilogue = EpilogueOf(work),
      .bias = work.bias.present() ? At(work.bias.data, work.bias.dtype, work.bias.layout.offset()) : nullptr,
      .pre_activation = s.present() ? const_cast<void*>(At(s.data, s.dtype, s.layout.offset())) : nullptr,
      .pre_activation_ld = s.present() ? s.stride(s.rank() - 2) : 0,
  };
  const internal::LaunchScope scope(c.device);
  return MultiplyBatch(scope, c.device.index, problem, work, batch);
}

}  // namespace tessera::ops::cuda
