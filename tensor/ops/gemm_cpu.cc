// SPDX-License-Identifier: Apache-2.0
// The plan of a product: C is cut into blocks, K into pieces of at most 256. For each block and piece, A's rows lie packed
// in the second-level cache; B's panels (as wide as the register tile) go through the first-level cache one by one, each
// used for all rows of the block. K. Goto, R. van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008.
//
// An operand that several blocks read is packed once, by all threads together, before the blocks begin ("shared"); one
// that a single block reads is packed by that block, panel by panel, just before its use.
#include "tensor/ops/gemm.h"
#include "tensor/ops/gemm_pack.h"
#include "tensor/ops/gemm_serial.h"
#include "tensor/ops/gemm_tile.h"
#include "tensor/scratch.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

constexpr int64_t kMaxPiece = 256;
constexpr int64_t kMaxColPanels = 8;             // of a block whose columns are cut
constexpr int64_t kMaxWideCols = 1024;           // C at most this wide is cut into rows only
constexpr int64_t kBlocks = 16;                  // aimed at: enough for any usual number of threads to share evenly
constexpr int64_t kMinBlockWork = int64_t{1} << 20;  // multiply-adds worth handing to another thread
constexpr int64_t kMaxSharedBytes = int64_t{8} << 20;
constexpr int64_t kFinishCols = 256;  // columns that the epilogue takes at a time

TESSERA_ALWAYS_INLINE int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
TESSERA_ALWAYS_INLINE int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
TESSERA_ALWAYS_INLINE int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }

// Of one packed panel, with slack.
template <class T>
constexpr int64_t kRowPanelNumel = kTileRows * kMaxPiece + kPackSlack;
template <class T>
constexpr int64_t kColPanelNumel = Tile<T>::kCols * kMaxPiece + kPackSlack;

// [0, n) in `parts` nearly equal parts.
struct Cut {
  int64_t n = 0, parts = 1;
  TESSERA_ALWAYS_INLINE int64_t begin(int64_t part) const { return part * n / parts; }
};

// Where the cuts are: a function of the shape alone.
template <class T>
struct Plan {
  Cut rows;        // M into row panels
  int64_t n = 0, k = 0;
  int64_t piece = 1, piece_count = 0;  // K into pieces of this many
  int64_t col_panels = 0;
  Cut row_blocks;  // row panels into blocks
  Cut col_blocks;  // column panels into blocks

  Plan(const GemmProblem& problem, bool direct) {
    n = problem.n;
    k = problem.k;
    const int64_t row_panels = CeilDiv(problem.m, kTileRows);
    rows = {problem.m, row_panels};
    col_panels = CeilDiv(n, Tile<T>::kCols);
    if (k > 0) piece = CeilDiv(CeilDiv(k, CeilDiv(k, kMaxPiece)), 16) * 16;
    piece_count = k > 0 ? CeilDiv(k, piece) : 0;
    const int64_t wanted = Max(1, Min(kBlocks, problem.m * n / 16 * k / (kMinBlockWork / 16)));
    int64_t row_block_count = CeilDiv(row_panels, kMaxRowPanels), col_block_count = 1;
    if (row_block_count > 1 && direct && n <= kMaxWideCols) {
      row_block_count = Max(row_block_count, Min(wanted, row_panels / 4));
    } else {
      col_block_count = Max(CeilDiv(col_panels, kMaxColPanels), Min(wanted / row_block_count, CeilDiv(col_panels, 3)));
      col_block_count = Max(col_block_count, 1);
      if (row_block_count * col_block_count < wanted) {
        row_block_count = Max(row_block_count, Min(CeilDiv(wanted, col_block_count), CeilDiv(row_panels, 4)));
      }
    }
    row_blocks = {row_panels, row_block_count};
    col_blocks = {col_panels, col_block_count};
  }

  int64_t piece_begin(int64_t index) const { return index * piece; }
  int64_t piece_size(int64_t index) const { return Min(piece, k - index * piece); }
  int cols_of_panel(int64_t panel) const {
    return static_cast<int>(Min(Tile<T>::kCols, n - panel * Tile<T>::kCols));
  }
};

// Packed panels that every block may read; null where blocks pack for themselves.
template <class T>
struct Shared {
  const T* a = nullptr;  // [piece][row panel]
  const T* b = nullptr;  // [piece][column panel]
  int64_t first_piece = 0;
};

template <class T>
TESSERA_ALWAYS_INLINE T* Scratch(ScratchSlot slot, int64_t numel) {
  return static_cast<T*>(ThreadScratch(slot, numel * static_cast<int64_t>(sizeof(T))));
}

// The product of one matrix.
template <class T>
class Product {
 public:
  explicit Product(const GemmProblem& problem)
      : problem_(problem),
        a_{problem.a.data, problem.a.dtype, problem.a.row_stride, problem.a.col_stride},
        b_{problem.b.data, problem.b.dtype, problem.b.col_stride, problem.b.row_stride},
        direct_(problem.c.dtype == DTypeOf<T>() && (problem.c.col_stride == 1 || problem.n == 1)),
        plan_(problem, direct_) {}

  void RunSerial() {
    for (int64_t row = 0; row < plan_.row_blocks.parts; ++row) {
      for (int64_t col = 0; col < plan_.col_blocks.parts; ++col) {
        RunBlock(row, col, Shared<T>{}, 0, plan_.piece_count);
      }
    }
  }

  void RunParallel() {
    const int64_t blocks = plan_.row_blocks.parts * plan_.col_blocks.parts;
    if (blocks == 1 || plan_.k == 0) return RunSerial();
    const int64_t a_numel = plan_.col_blocks.parts > 1 ? plan_.rows.parts * kRowPanelNumel<T> : 0;
    const int64_t b_numel = plan_.row_blocks.parts > 1 ? plan_.col_panels * kColPanelNumel<T> : 0;
    const int64_t piece_bytes = (a_numel + b_numel) * static_cast<int64_t>(sizeof(T));
    int64_t group = Min(kMaxSharedBytes / piece_bytes, plan_.piece_count);
    // A sum that is rounded at its end stays with its block over the whole of K.
    const bool share = group > 0 && (direct_ || group == plan_.piece_count);
    if (!share) group = plan_.piece_count;
    for (int64_t first = 0; first < plan_.piece_count; first += group) {
      const int64_t last = Min(first + group, plan_.piece_count);
      Shared<T> shared;
      if (share) shared = PackShared(first, last, a_numel, b_numel);
      ParallelFor(blocks, 1, [&](int64_t begin, int64_t end) {
        for (int64_t block = begin; block < end; ++block) {
          RunBlock(block / plan_.col_blocks.parts, block % plan_.col_blocks.parts, shared, first, last);
        }
      });
    }
  }

 private:
  TESSERA_ALWAYS_INLINE void PackRowPanel(int64_t panel, int64_t piece, T* out) const {
    const int64_t row = plan_.rows.begin(panel);
    const int height = static_cast<int>(plan_.rows.begin(panel + 1) - row);
    Pack<T>(a_, row, height, plan_.piece_begin(piece), plan_.piece_size(piece), out, height);
  }

  TESSERA_ALWAYS_INLINE void PackColPanel(int64_t panel, int64_t piece, T* out) const {
    Pack<T>(b_, panel * Tile<T>::kCols, plan_.cols_of_panel(panel), plan_.piece_begin(piece), plan_.piece_size(piece),
            out, Tile<T>::kCols);
  }

  Shared<T> PackShared(int64_t first, int64_t last, int64_t a_numel, int64_t b_numel) const {
    T* a = Scratch<T>(ScratchSlot::kGemmShared, (last - first) * (a_numel + b_numel));
    T* b = a + (last - first) * a_numel;
    const int64_t a_panels = a_numel > 0 ? (last - first) * plan_.rows.parts : 0;
    const int64_t b_panels = b_numel > 0 ? (last - first) * plan_.col_panels : 0;
    // Small ones are not worth waking anybody: a grain is about 32k elements.
    const int64_t grain = Max(1, 32768 / ((a_numel > 0 ? kTileRows : Tile<T>::kCols) * plan_.piece));
    ParallelFor(a_panels + b_panels, grain, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        if (item < a_panels) {
          PackRowPanel(item % plan_.rows.parts, first + item / plan_.rows.parts, a + item * kRowPanelNumel<T>);
        } else {
          const int64_t panel = item - a_panels;
          PackColPanel(panel % plan_.col_panels, first + panel / plan_.col_panels, b + panel * kColPanelNumel<T>);
        }
      }
    });
    return {a_numel > 0 ? a : nullptr, b_numel > 0 ? b : nullptr, first};
  }

  // A block of C: rows and columns, the panels that hold them, and where the values go.
  struct Block {
    int64_t row_panel, row_panel_end, col_panel, col_panel_end;
    int64_t row, row_end, col, col_end;
    T* out;  // of element (row, col): in C, or in this thread's tile
    int64_t out_stride;
  };

  Block BlockAt(int64_t row_block, int64_t col_block) const {
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

  // Pieces [first, last) of K for one block of C.
  void RunBlock(int64_t row_block, int64_t col_block, const Shared<T>& shared, int64_t first, int64_t last) const {
    const Block block = BlockAt(row_block, col_block);
    if (plan_.k == 0 && !(direct_ && problem_.accumulate)) {
      for (int64_t i = 0; i < block.row_end - block.row; ++i) {
        for (int64_t j = 0; j < block.col_end - block.col; ++j) block.out[i * block.out_stride + j] = 0;
      }
    }
    for (int64_t piece = first; piece < last; ++piece) RunPiece(block, shared, piece);
    if (last == plan_.piece_count) Finish(block);
  }

  void RunPiece(const Block& block, const Shared<T>& shared, int64_t piece) const {
    const int64_t piece_index = piece - shared.first_piece;
    const T* a = shared.a != nullptr
                     ? shared.a + (piece_index * plan_.rows.parts + block.row_panel) * kRowPanelNumel<T>
                     : PackRowsOf(block, piece);
    T* own_b = shared.b != nullptr ? nullptr : Scratch<T>(ScratchSlot::kGemmB, kColPanelNumel<T>);
    for (int64_t panel = block.col_panel; panel < block.col_panel_end; ++panel) {
      PanelPrefetch prefetch;
      const T* b = own_b;
      if (own_b == nullptr) {
        b = shared.b + (piece_index * plan_.col_panels + panel) * kColPanelNumel<T>;
      } else {
        PackColPanel(panel, piece, own_b);
        if (panel + 1 < block.col_panel_end) {
          prefetch = PanelPrefetch(b_, (panel + 1) * Tile<T>::kCols, plan_.cols_of_panel(panel + 1),
                                   plan_.piece_begin(piece), plan_.piece_size(piece),
                                   block.row_panel_end - block.row_panel);
        }
      }
      MultiplyColumn(block, panel, piece, a, b, &prefetch);
    }
  }

  // All rows of the block by one panel of columns.
  void MultiplyColumn(const Block& block, int64_t panel, int64_t piece, const T* a, const T* b,
                      PanelPrefetch* prefetch) const {
    const T alpha = static_cast<T>(problem_.alpha);
    const bool accumulate = piece > 0 || (direct_ && problem_.accumulate);
    const int width = plan_.cols_of_panel(panel);
    T* out = block.out + (panel - block.col_panel) * Tile<T>::kCols;
    int64_t row = block.row;
    for (int64_t p = block.row_panel; p < block.row_panel_end; ++p) {
      const int64_t next_row = plan_.rows.begin(p + 1);
      prefetch->NextShare();
      MultiplyPanels(static_cast<int>(next_row - row), width, plan_.piece_size(piece), a, b, int64_t{Tile<T>::kCols},
                     out, block.out_stride, alpha, accumulate);
      a += kRowPanelNumel<T>;
      out += (next_row - row) * block.out_stride;
      row = next_row;
    }
  }

  const T* PackRowsOf(const Block& block, int64_t piece) const {
    const int64_t panels = block.row_panel_end - block.row_panel;
    T* packed = Scratch<T>(ScratchSlot::kGemmA, panels * kRowPanelNumel<T>);
    for (int64_t i = 0; i < panels; ++i) PackRowPanel(block.row_panel + i, piece, packed + i * kRowPanelNumel<T>);
    return packed;
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
  const GemmProblem problem =
      !dense_rows && dense_cols && !HasEpilogue(given.epilogue) ? Transposed(given) : given;
  const auto run = [](auto&& product) { kParallel ? product.RunParallel() : product.RunSerial(); };
  if (problem.a.dtype == DType::kF64 || problem.b.dtype == DType::kF64 || problem.c.dtype == DType::kF64) {
    run(Product<double>(problem));
  } else {
    run(Product<float>(problem));
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
  if (batch.count() == 1 || work >= kBlocks * kMinBlockWork) {
    for (int64_t i = 0; i < batch.count(); ++i) Run<true>(batch.ProblemAt(args, i));
    return;
  }
  ParallelFor(batch.count(), Max(1, kMinBlockWork / Max(1, work)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) Run<false>(batch.ProblemAt(args, i));
  });
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
