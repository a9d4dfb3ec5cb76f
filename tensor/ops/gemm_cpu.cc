// SPDX-License-Identifier: Apache-2.0
// The plan of a product: C is cut into blocks, K into pieces of at most 256. For each block and piece, the block's rows
// of A are packed into the second-level cache; B's panels (as wide as the register tile) go through the first-level
// cache one by one, each used for all rows of the block. K. Goto, R. van de Geijn, "Anatomy of High-Performance Matrix
// Multiplication", 2008.
//
// Every block packs for itself. Packing an operand once for all threads looks cheaper and is not: its lines then lie in
// the other cores' caches when they are written again, and taking them back costs four times as much as packing twice.
#include "tensor/ops/gemm.h"
#include "tensor/ops/gemm_pack.h"
#include "tensor/ops/gemm_serial.h"
#include "tensor/ops/gemm_tile.h"
#include "tensor/scratch.h"

#if !defined(__AVX2__)
// Named after the instruction set: Eigen's templates are weak symbols, and of any other Eigen in the program, compiled
// for another machine perhaps, the linker would keep one copy for both.
#define TESSERA_JOIN_(a, b) a##b
#define TESSERA_JOIN(a, b) TESSERA_JOIN_(a, b)
#define Eigen TESSERA_JOIN(Eigen_, TESSERA_ISA)
#include <Eigen/Core>
#endif

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

#if !defined(__AVX2__)
template <class T>
void MultiplyPanels(int h, int w, const TileProduct<T>& tile) {
  using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using ColMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
  const Eigen::Map<const ColMajor> left(tile.a, h, tile.k_count);
  const Eigen::Map<const RowMajor, 0, Eigen::OuterStride<>> right(tile.b, tile.k_count, w,
                                                                  Eigen::OuterStride<>(tile.ldb));
  Eigen::Map<RowMajor, 0, Eigen::OuterStride<>> out(tile.c, h, w, Eigen::OuterStride<>(tile.ldc));
  if (tile.accumulate) {
    out.noalias() += tile.alpha * left * right;
  } else {
    out.noalias() = tile.alpha * left * right;
  }
}
#endif

constexpr int64_t kMaxPiece = 256;
constexpr int64_t kMaxCols = 1024;     // of a block that comes back to its sums: with its rows, a megabyte of them
constexpr int64_t kMaxTileCols = 512;  // of a block whose sums do not lie in C
constexpr int64_t kMinBlockWork = int64_t{1} << 21;  // multiply-adds worth waking another thread for
constexpr int64_t kLargeWork = int64_t{1} << 25;     // multiply-adds from which the matrices of a batch take turns
constexpr int64_t kFinishCols = 256;                 // columns that the epilogue takes at a time

TESSERA_ALWAYS_INLINE int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
TESSERA_ALWAYS_INLINE int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
TESSERA_ALWAYS_INLINE int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }

// Of one packed panel, with slack.
template <class T>
constexpr int64_t kRowPanelNumel = kTileRows* kMaxPiece + kPackSlack;
template <class T>
constexpr int64_t kColPanelNumel = Tile<T>::kCols* kMaxPiece + kPackSlack;

// Where the cuts are. Panels and pieces, and with them the bits, are a function of the shape alone; how panels are
// dealt out in blocks is not: it follows the number of threads.
template <class T>
struct Plan {
  Cut rows;  // M into row panels
  int64_t n = 0, k = 0;
  int64_t piece = 1, piece_count = 0;  // K into pieces of this many
  int64_t col_panels = 0;
  Cut row_blocks;  // row panels into blocks
  Cut col_blocks;  // column panels into blocks

  Plan(const GemmProblem& problem, bool direct, int64_t threads) : n(problem.n), k(problem.k) {
    rows = {problem.m, CeilDiv(problem.m, kTileRows)};
    col_panels = CeilDiv(n, Tile<T>::kCols);
    if (k > 0) piece = CeilDiv(CeilDiv(k, CeilDiv(k, kMaxPiece)), 16) * 16;
    piece_count = k > 0 ? CeilDiv(k, piece) : 0;
    row_blocks = {rows.parts, CeilDiv(rows.parts, kMaxRowPanels)};
    col_blocks = {col_panels, !direct ? CeilDiv(n, kMaxTileCols) : piece_count > 1 ? CeilDiv(n, kMaxCols) : 1};
    const int64_t worth = (problem.m + kPackCol) * n / 16 * k / (kMinBlockWork / 16);
    if (threads > 1 && worth > 1) ChooseBlocks(Min(threads, worth));
  }

  int64_t piece_begin(int64_t index) const { return index * piece; }
  int64_t piece_size(int64_t index) const { return Min(piece, k - index * piece); }
  int cols_of_panel(int64_t panel) const { return static_cast<int>(Min(Tile<T>::kCols, n - panel * Tile<T>::kCols)); }

 private:
  // Packing a row of A costs as much as multiplying so many columns more; packing a column of B, so many rows more.
  static constexpr int64_t kPackRow = 12, kPackCol = 8;

  // Cuts C for so many threads: takes the cheapest of a few ways, counted in products of one row by one column.
  void ChooseBlocks(int64_t threads) {
    const int64_t least_rows = row_blocks.parts, least_cols = col_blocks.parts;
    int64_t best = INT64_MAX;
    for (int64_t row_parts = least_rows; row_parts <= rows.parts && row_parts <= least_rows * threads; row_parts *= 2) {
      for (int64_t rounds = CeilDiv(row_parts * least_cols, threads), last = rounds + 3; rounds < last; ++rounds) {
        const int64_t col_parts = Min(Max(rounds * threads / row_parts, least_cols), col_panels);
        const int64_t height = CeilDiv(rows.parts, row_parts) * kTileRows;
        const int64_t width = CeilDiv(col_panels, col_parts) * Tile<T>::kCols;
        const int64_t cost =
            CeilDiv(row_parts * col_parts, threads) * (height * width + height * kPackRow + width * kPackCol);
        if (cost >= best) continue;
        best = cost;
        row_blocks.parts = row_parts;
        col_blocks.parts = col_parts;
      }
    }
  }
};

template <class T>
TESSERA_ALWAYS_INLINE T* Scratch(ScratchSlot slot, int64_t numel) {
  return static_cast<T*>(ThreadScratch(slot, numel * static_cast<int64_t>(sizeof(T))));
}

// The product of one matrix.
template <class T>
class Product {
 public:
  Product(const GemmProblem& problem, int threads)
      : problem_(problem),
        a_{problem.a.data, problem.a.dtype, problem.a.row_stride, problem.a.col_stride},
        b_{problem.b.data, problem.b.dtype, problem.b.col_stride, problem.b.row_stride},
        direct_(problem.c.dtype == DTypeOf<T>() && (problem.c.col_stride == 1 || problem.n == 1)),
        plan_(problem, direct_, threads) {}

  void RunSerial() const {
    for (int64_t block = 0; block < blocks(); ++block) RunBlock(block);
  }

  void RunParallel() const {
    ParallelFor(blocks(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) RunBlock(block);
    });
  }

 private:
  // A block of C: rows and columns, the panels that hold them, and where the values go.
  struct Block {
    int64_t row_panel, row_panel_end, col_panel, col_panel_end;
    int64_t row, row_end, col, col_end;
    T* out;  // of element (row, col): in C, or in this thread's tile
    int64_t out_stride;
  };

  int64_t blocks() const { return plan_.row_blocks.parts * plan_.col_blocks.parts; }

  Block BlockAt(int64_t index) const {
    const int64_t row_block = index / plan_.col_blocks.parts, col_block = index % plan_.col_blocks.parts;
    Block block;
    block.row_panel = plan_.row_blocks.begin(row_block);
    block.row_panel_end = plan_.row_blocks.begin(row_block + 1);
    block.col_panel = plan_.col_blocks.begin(col_block);
    block.col_panel_end = plan_.col_blocks.begin(col_block + 1);
    block.row = plan_.rows.begin(block.row_panel);
    block.row_end = plan_.rows.begin(block.row_panel_end);
    block.col = block.col_panel * Tile<T>::kCols;
    block.col_end = Min(block.col_panel_end * Tile<T>::kCols, plan_.n);
    if (direct_) {
      block.out = static_cast<T*>(problem_.c.data) + block.row * problem_.c.row_stride + block.col;
      block.out_stride = problem_.c.row_stride;
    } else {
      block.out_stride = (block.col_panel_end - block.col_panel) * Tile<T>::kCols;
      block.out = Scratch<T>(ScratchSlot::kGemmTile, (block.row_end - block.row) * block.out_stride);
    }
    return block;
  }

  void RunBlock(int64_t index) const {
    const Block block = BlockAt(index);
    if (plan_.k == 0 && !(direct_ && problem_.accumulate)) {
      for (int64_t i = 0; i < block.row_end - block.row; ++i) {
        for (int64_t j = 0; j < block.col_end - block.col; ++j) block.out[i * block.out_stride + j] = 0;
      }
    }
    for (int64_t piece = 0; piece < plan_.piece_count; ++piece) RunPiece(block, piece);
    Finish(block);
  }

  void RunPiece(const Block& block, int64_t piece) const {
    T* packed_a = Scratch<T>(ScratchSlot::kGemmA, (block.row_panel_end - block.row_panel) * kRowPanelNumel<T>);
    T* packed_b = Scratch<T>(ScratchSlot::kGemmB, kColPanelNumel<T>);
    const int64_t k = plan_.piece_begin(piece), k_count = plan_.piece_size(piece);
    PackRowPanels(block, k, k_count, packed_a);
    for (int64_t panel = block.col_panel; panel < block.col_panel_end; ++panel) {
      TileProduct<T> tile{.k_count = k_count,
                          .a = packed_a,
                          .b = packed_b,
                          .ldb = Tile<T>::kCols,
                          .c = block.out + (panel - block.col_panel) * Tile<T>::kCols,
                          .ldc = block.out_stride,
                          .alpha = static_cast<T>(problem_.alpha),
                          .accumulate = piece > 0 || (direct_ && problem_.accumulate)};
      if (RowsLieInPlace(panel)) {
        tile.b = static_cast<const T*>(b_.data) + k * b_.k_stride + panel * Tile<T>::kCols;
        tile.ldb = b_.k_stride;
        const bool used_again = block.row_panel + 1 < block.row_panel_end;
        tile.packed = used_again ? packed_b : nullptr;
      } else {
        Pack<T>(b_, panel * Tile<T>::kCols, plan_.cols_of_panel(panel), k, k_count, packed_b, Tile<T>::kCols);
      }
      MultiplyColumn(block, plan_.cols_of_panel(panel), tile, ComingAfter(block, panel, piece, packed_a));
    }
  }

  // What is packed after this panel's products: the next panel, or the next piece's rows and first panel.
  LinesQueue ComingAfter(const Block& block, int64_t panel, int64_t piece, const T* idle) const {
    LinesQueue lines(idle);
    if (panel + 1 == block.col_panel_end) {
      if (++piece == plan_.piece_count) return lines;
      panel = block.col_panel - 1;
      lines.Add(a_, block.row, block.row_end - block.row, plan_.piece_begin(piece), plan_.piece_size(piece));
    }
    ++panel;
    lines.Add(b_, panel * Tile<T>::kCols, plan_.cols_of_panel(panel), plan_.piece_begin(piece),
              plan_.piece_size(piece));
    return lines;
  }

  void PackRowPanels(const Block& block, int64_t k, int64_t k_count, T* out) const {
    if (a_.lane_stride == 1) {
      return PackDenseLanes(a_, plan_.rows, block.row_panel, block.row_panel_end, k, k_count, out, kRowPanelNumel<T>);
    }
    for (int64_t panel = block.row_panel; panel < block.row_panel_end; ++panel, out += kRowPanelNumel<T>) {
      const int64_t row = plan_.rows.begin(panel);
      const int height = static_cast<int>(plan_.rows.begin(panel + 1) - row);
      Pack<T>(a_, row, height, k, k_count, out, height);
    }
  }

  // The panel's rows in B are as the innermost product reads them, but for the distance between them.
  bool RowsLieInPlace(int64_t panel) const {
    return kReadsRowsInPlace && b_.dtype == DTypeOf<T>() && b_.lane_stride == 1 &&
           plan_.cols_of_panel(panel) == Tile<T>::kCols;
  }

  // All rows of the block by one panel of columns. `tile` is the first row panel's.
  void MultiplyColumn(const Block& block, int width, TileProduct<T> tile, LinesQueue ahead) const {
    int64_t row = block.row;
    for (int64_t panel = block.row_panel; panel < block.row_panel_end; ++panel) {
      const int64_t next_row = plan_.rows.begin(panel + 1);
      tile.ahead = ahead.Next();
      MultiplyPanels(static_cast<int>(next_row - row), width, tile);
      if (tile.packed != nullptr) {
        tile.b = tile.packed;
        tile.ldb = Tile<T>::kCols;
        tile.packed = nullptr;
      }
      tile.a += kRowPanelNumel<T>;
      tile.c += (next_row - row) * tile.ldc;
      row = next_row;
    }
  }

  // The epilogue, and the way from the tile to C where the product was not made in place.
  void Finish(const Block& block) const {
    const GemmEpilogue& epilogue = problem_.epilogue;
    if (direct_ && epilogue.bias == nullptr && epilogue.pre_activation.data == nullptr && !epilogue.gelu) return;
    T bias[kFinishCols];
    for (int64_t col = block.col; col < block.col_end; col += kFinishCols) {
      const int64_t width = Min(kFinishCols, block.col_end - col);
      for (int64_t j = 0; j < width; ++j) bias[j] = 0;
      if (epilogue.bias != nullptr) {
        AddStrided(bias, width, epilogue.bias, epilogue.bias_dtype, col * epilogue.bias_stride, epilogue.bias_stride);
      }
      for (int64_t row = block.row; row < block.row_end; ++row) {
        FinishRow(row, col, width, bias, block.out + (row - block.row) * block.out_stride + (col - block.col));
      }
    }
  }

  void FinishRow(int64_t row, int64_t col, int64_t width, const T* bias, T* values) const {
    const GemmEpilogue& epilogue = problem_.epilogue;
    const GemmTarget &c = problem_.c, &pre = epilogue.pre_activation;
    const int64_t c_offset = row * c.row_stride + col * c.col_stride;
    if (!direct_ && problem_.accumulate) AddStrided(values, width, c.data, c.dtype, c_offset, c.col_stride);
    if (epilogue.bias != nullptr) {
      for (int64_t j = 0; j < width; ++j) values[j] += bias[j];
    }
    if (pre.data != nullptr) {
      StoreStrided(values, width, pre.data, pre.dtype, row * pre.row_stride + col * pre.col_stride, pre.col_stride);
    }
    if (epilogue.gelu) {
      for (int64_t j = 0; j < width; ++j) values[j] = GeluTanh(values[j]);
    }
    if (!direct_) StoreStrided(values, width, c.data, c.dtype, c_offset, c.col_stride);
  }

  // values += x and x = values, for a row of another dtype or with a stride.
  static void AddStrided(T* values, int64_t width, const void* x, DType dtype, int64_t offset, int64_t stride) {
    DispatchFloating(dtype, [&](auto tag) {
      const auto* from = static_cast<const typename decltype(tag)::type*>(x) + offset;
      if (stride == 1) {
        for (int64_t j = 0; j < width; ++j) values[j] += static_cast<T>(Load(from[j]));
      } else {
        for (int64_t j = 0; j < width; ++j) values[j] += static_cast<T>(Load(from[j * stride]));
      }
    });
  }
  static void StoreStrided(const T* values, int64_t width, void* x, DType dtype, int64_t offset, int64_t stride) {
    DispatchFloating(dtype, [&](auto tag) {
      using S = typename decltype(tag)::type;
      S* to = static_cast<S*>(x) + offset;
      if (stride == 1) {
        for (int64_t j = 0; j < width; ++j) to[j] = Store<S>(values[j]);
      } else {
        for (int64_t j = 0; j < width; ++j) to[j * stride] = Store<S>(values[j]);
      }
    });
  }

  const GemmProblem& problem_;
  Lanes a_, b_;
  bool direct_;  // C is of type T and dense along its rows: sums go straight into it
  Plan<T> plan_;
};

// C^T = B^T A^T: brings a C with dense columns to one with dense rows.
GemmProblem Transposed(const GemmProblem& problem) {
  GemmProblem out = problem;
  out.m = problem.n;
  out.n = problem.m;
  out.a = {problem.b.data, problem.b.dtype, problem.b.col_stride, problem.b.row_stride};
  out.b = {problem.a.data, problem.a.dtype, problem.a.col_stride, problem.a.row_stride};
  out.c = {problem.c.data, problem.c.dtype, problem.c.col_stride, problem.c.row_stride};
  return out;
}

bool HasEpilogue(const GemmEpilogue& epilogue) {
  return epilogue.bias != nullptr || epilogue.pre_activation.data != nullptr || epilogue.gelu;
}

template <bool kParallel>
void Run(const GemmProblem& given) {
  if (given.m == 0 || given.n == 0) return;
  const bool dense_rows = given.c.col_stride == 1 || given.n == 1;
  const bool dense_cols = given.c.row_stride == 1 || given.m == 1;
  const GemmProblem problem = !dense_rows && dense_cols && !HasEpilogue(given.epilogue) ? Transposed(given) : given;
  const auto run = [](auto&& product) { kParallel ? product.RunParallel() : product.RunSerial(); };
  const int threads = kParallel ? NumThreads() : 1;
  if (problem.a.dtype == DType::kF64 || problem.b.dtype == DType::kF64 || problem.c.dtype == DType::kF64) {
    run(Product<double>(problem, threads));
  } else {
    run(Product<float>(problem, threads));
  }
}

// The leading dims of the arguments, as one index.
class Batch {
 public:
  explicit Batch(const GemmArgs& args) : rank_(args.c.rank() - 2) {
    for (int dim = 0; dim < rank_; ++dim) {
      size_[dim] = args.c.size(dim);
      count_ *= size_[dim];
      c_stride_[dim] = args.c.stride(dim);
      a_stride_[dim] = StrideIn(args.a, dim);
      b_stride_[dim] = StrideIn(args.b, dim);
      pre_stride_[dim] = args.pre_activation.present() ? args.pre_activation.stride(dim) : 0;
    }
  }

  int64_t count() const { return count_; }

  GemmProblem ProblemAt(const GemmArgs& args, int64_t index) const {
    int64_t a = args.a.layout.offset(), b = args.b.layout.offset(), c = args.c.layout.offset();
    int64_t pre = args.pre_activation.layout.offset();
    for (int dim = rank_ - 1; dim >= 0; --dim) {
      const int64_t at = index % size_[dim];
      index /= size_[dim];
      a += at * a_stride_[dim];
      b += at * b_stride_[dim];
      c += at * c_stride_[dim];
      pre += at * pre_stride_[dim];
    }
    GemmProblem problem;
    problem.m = args.c.size(rank_);
    problem.n = args.c.size(rank_ + 1);
    problem.k = args.a.size(args.a.rank() - 1);
    problem.a = {At(args.a.data, args.a.dtype, a), args.a.dtype, args.a.stride(args.a.rank() - 2),
                 args.a.stride(args.a.rank() - 1)};
    problem.b = {At(args.b.data, args.b.dtype, b), args.b.dtype, args.b.stride(args.b.rank() - 2),
                 args.b.stride(args.b.rank() - 1)};
    problem.c = {At(args.c.data, args.c.dtype, c), args.c.dtype, args.c.stride(rank_), args.c.stride(rank_ + 1)};
    problem.alpha = args.alpha;
    problem.accumulate = args.accumulate;
    problem.epilogue.gelu = args.gelu;
    if (args.bias.present()) {
      problem.epilogue.bias = At(args.bias.data, args.bias.dtype, args.bias.layout.offset());
      problem.epilogue.bias_dtype = args.bias.dtype;
      problem.epilogue.bias_stride = args.bias.stride(0);
    }
    if (args.pre_activation.present()) {
      problem.epilogue.pre_activation = {At(args.pre_activation.data, args.pre_activation.dtype, pre),
                                         args.pre_activation.dtype, args.pre_activation.stride(rank_),
                                         args.pre_activation.stride(rank_ + 1)};
    }
    return problem;
  }

 private:
  int64_t StrideIn(const ConstView& view, int dim) const {
    const int own = dim - (rank_ - (view.rank() - 2));
    return own < 0 || view.size(own) == 1 ? 0 : view.stride(own);
  }
  static const void* At(const void* data, DType dtype, int64_t offset) {
    return static_cast<const char*>(data) + offset * ItemSize(dtype);
  }
  static void* At(void* data, DType dtype, int64_t offset) {
    return static_cast<char*>(data) + offset * ItemSize(dtype);
  }

  int rank_;
  int64_t count_ = 1;
  int64_t size_[kMaxRank], a_stride_[kMaxRank], b_stride_[kMaxRank], c_stride_[kMaxRank], pre_stride_[kMaxRank];
};

}  // namespace

void GemmSerial(const GemmProblem& problem) { Run<false>(problem); }

void Gemm(const GemmArgs& args) {
  const Batch batch(args);
  if (batch.count() == 0) return;
  const GemmProblem first = batch.ProblemAt(args, 0);
  const int64_t work = first.m * first.n * (first.k > 0 ? first.k : 1);
  if (batch.count() == 1 || work >= kLargeWork) {
    for (int64_t i = 0; i < batch.count(); ++i) Run<true>(batch.ProblemAt(args, i));
    return;
  }
  ParallelFor(batch.count(), Max(1, kMinBlockWork / Max(1, work)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) Run<false>(batch.ProblemAt(args, i));
  });
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
