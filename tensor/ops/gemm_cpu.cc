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
#include "tensor/progress.h"
#include "tensor/scratch.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

constexpr int64_t kMaxPiece = 256;
constexpr int64_t kMaxColPanels = 8;             // of a block whose columns are cut
constexpr int64_t kMaxWideCols = 1024;           // C at most this wide is cut into rows only
constexpr int64_t kBlocksPerThread = 3;          // aimed at: a thread that was held up leaves work to the others
constexpr int64_t kFewReaders = 3;               // row blocks that may each pack B's rows, at next to no cost, by themselves
constexpr int64_t kMinBlockWork = int64_t{1} << 20;  // multiply-adds worth handing to another thread
constexpr int64_t kLargeWork = int64_t{1} << 25;     // multiply-adds from which the matrices of a batch take turns
constexpr int64_t kMaxSharedBytes = int64_t{8} << 20;
constexpr int64_t kGoodSharedBytes = int64_t{2} << 20;  // stays near the cores from its packing to its use
constexpr int64_t kBundle = 8;        // row panels with dense lanes that are packed together
constexpr int64_t kFinishCols = 256;  // columns that the epilogue takes at a time

TESSERA_ALWAYS_INLINE int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
TESSERA_ALWAYS_INLINE int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
TESSERA_ALWAYS_INLINE int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }

// Of one packed panel, with slack.
template <class T>
constexpr int64_t kRowPanelNumel = kTileRows * kMaxPiece + kPackSlack;
template <class T>
constexpr int64_t kColPanelNumel = Tile<T>::kCols * kMaxPiece + kPackSlack;

// Where the cuts are. Panels and pieces, and with them the bits, are a function of the shape alone; how panels are dealt out
// in blocks is not: it follows the number of threads.
template <class T>
struct Plan {
  Cut rows;        // M into row panels
  int64_t n = 0, k = 0;
  int64_t piece = 1, piece_count = 0;  // K into pieces of this many
  int64_t col_panels = 0;
  Cut row_blocks;  // row panels into blocks
  Cut col_blocks;  // column panels into blocks

  Plan(const GemmProblem& problem, bool direct, int threads) {
    n = problem.n;
    k = problem.k;
    const int64_t row_panels = CeilDiv(problem.m, kTileRows);
    rows = {problem.m, row_panels};
    col_panels = CeilDiv(n, Tile<T>::kCols);
    if (k > 0) piece = CeilDiv(CeilDiv(k, CeilDiv(k, kMaxPiece)), 16) * 16;
    piece_count = k > 0 ? CeilDiv(k, piece) : 0;
    const int64_t worth = problem.m * n / 16 * k / (kMinBlockWork / 16);
    const int64_t wanted = threads == 1 ? 1 : Max(1, Min(kBlocksPerThread * threads, worth));
    int64_t row_block_count = CeilDiv(row_panels, kMaxRowPanels), col_block_count = 1;
    if (row_block_count > 1 && direct && n <= kMaxWideCols) {
      row_block_count = SharedOut(Max(row_block_count, Min(wanted, row_panels / 4)), threads, row_panels);
    } else {
      col_block_count = Max(CeilDiv(col_panels, kMaxColPanels), Min(wanted / row_block_count, CeilDiv(col_panels, 3)));
      if (row_block_count * col_block_count < wanted) {
        row_block_count = Max(row_block_count, Min(CeilDiv(wanted, col_block_count), CeilDiv(row_panels, 4)));
      }
      if (row_block_count == 1) col_block_count = SharedOut(col_block_count, threads, col_panels);
    }
    row_blocks = {row_panels, row_block_count};
    col_blocks = {col_panels, col_block_count};
  }

  // So many parts, or a few more if that lets the threads have equally many.
  static int64_t SharedOut(int64_t parts, int64_t threads, int64_t most) {
    return parts <= threads ? parts : Min(CeilDiv(parts, threads) * threads, most);
  }

  int64_t piece_begin(int64_t index) const { return index * piece; }
  int64_t piece_size(int64_t index) const { return Min(piece, k - index * piece); }
  int cols_of_panel(int64_t panel) const {
    return static_cast<int>(Min(Tile<T>::kCols, n - panel * Tile<T>::kCols));
  }
};

template <class T>
TESSERA_ALWAYS_INLINE T* Scratch(ScratchSlot slot, int64_t numel) {
  return static_cast<T*>(ThreadScratch(slot, numel * static_cast<int64_t>(sizeof(T))));
}

// Packed panels that every block may read, of up to `pieces` pieces; null where blocks pack for themselves.
template <class T>
struct Shared {
  T* a = nullptr;  // [piece][row panel]
  T* b = nullptr;  // [piece][column panel]
  int64_t first_piece = 0, pieces = 0;
  int64_t a_numel = 0, b_numel = 0;  // of one piece

  Shared() = default;
  Shared(T* data, int64_t count, int64_t a_piece_numel, int64_t b_piece_numel)
      : pieces(count), a_numel(a_piece_numel), b_numel(b_piece_numel) {
    if (a_numel > 0) a = data;
    if (b_numel > 0) b = data + pieces * a_numel;
  }
};

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
    const bool share_a = plan_.col_blocks.parts > 1;
    const bool share_b = plan_.row_blocks.parts > (RowsLieInPlace(0) ? kFewReaders : 1);
    const int64_t a_numel = share_a ? plan_.rows.parts * kRowPanelNumel<T> : 0;
    const int64_t b_numel = share_b ? plan_.col_panels * kColPanelNumel<T> : 0;
    const int64_t piece_bytes = Max((a_numel + b_numel) * static_cast<int64_t>(sizeof(T)), 1);
    // A sum that is rounded at its end stays with its block over the whole of K.
    int64_t group = direct_ ? Min(Max(kGoodSharedBytes / piece_bytes, 1), plan_.piece_count) : plan_.piece_count;
    const bool share = (share_a || share_b) && group * piece_bytes <= kMaxSharedBytes;
    if (!share) group = plan_.piece_count;
    const int64_t groups = CeilDiv(plan_.piece_count, group);
    Shared<T> shared[2];  // while one group is in use the next is packed
    if (share) {
      T* data = Scratch<T>(ScratchSlot::kGemmShared, (groups > 1 ? 2 : 1) * group * (a_numel + b_numel));
      shared[0] = Shared<T>(data, group, a_numel, b_numel);
      shared[1] = Shared<T>(data + group * (a_numel + b_numel), group, a_numel, b_numel);
    }
    RunGroups(shared, groups);
  }

 private:
  // One loop over all groups of pieces: first a group's packing, then its blocks. A block waits for its group's packing and,
  // as it adds to what they wrote, for the blocks of the group before.
  void RunGroups(const Shared<T> (&shared)[2], int64_t groups) const {
    const int64_t group = CeilDiv(plan_.piece_count, groups);
    const int64_t items = PackingItems(shared[0]);
    // About 32k elements: that much is packed while another thread wakes up.
    const int64_t panel_lanes = shared[0].a != nullptr ? kTileRows * bundle() : Tile<T>::kCols;
    const int64_t grain = Max(1, 32768 / (panel_lanes * plan_.piece));
    const int64_t packings = CeilDiv(items, grain);
    const int64_t blocks = plan_.row_blocks.parts * plan_.col_blocks.parts;
    Progress packed, multiplied;
    ParallelFor(groups * (packings + blocks), 1, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const int64_t at = chunk / (packings + blocks), step = chunk % (packings + blocks);
        Shared<T> now = shared[at % 2];
        now.first_piece = at * group;
        const int64_t last = Min(now.first_piece + group, plan_.piece_count);
        if (step < packings) {
          const Progress::Step counted(&packed);
          packed.WaitFor(at * packings);
          multiplied.WaitFor((at - 1) * blocks);  // the last who read this buffer
          PackItems(now, last, step * grain, Min((step + 1) * grain, items));
        } else {
          const Progress::Step counted(&multiplied);
          packed.WaitFor((at + 1) * packings);
          multiplied.WaitFor(at * blocks);
          const int64_t block = step - packings;
          RunBlock(block / plan_.col_blocks.parts, block % plan_.col_blocks.parts, now, now.first_piece, last);
        }
      }
    });
  }

  // Row panels [begin, end) of one piece.
  void PackRowPanels(int64_t begin, int64_t end, int64_t piece, T* out) const {
    const int64_t k = plan_.piece_begin(piece), k_count = plan_.piece_size(piece);
    if (a_.lane_stride == 1) {
      return PackDenseLanes(a_, plan_.rows, begin, end, k, k_count, out, kRowPanelNumel<T>);
    }
    for (int64_t panel = begin; panel < end; ++panel, out += kRowPanelNumel<T>) {
      const int64_t row = plan_.rows.begin(panel);
      const int height = static_cast<int>(plan_.rows.begin(panel + 1) - row);
      Pack<T>(a_, row, height, k, k_count, out, height);
    }
  }

  void PackColPanel(int64_t panel, int64_t piece, T* out) const {
    Pack<T>(b_, panel * Tile<T>::kCols, plan_.cols_of_panel(panel), plan_.piece_begin(piece), plan_.piece_size(piece),
            out, Tile<T>::kCols);
  }

  // How many row panels are packed at once.
  int64_t bundle() const { return a_.lane_stride == 1 ? kBundle : 1; }

  // An item is a bundle of row panels or a column panel, of one piece. Both operands are taken along their dense direction.
  int64_t PackingItems(const Shared<T>& shared) const {
    const int64_t a_items = shared.a != nullptr ? CeilDiv(plan_.rows.parts, bundle()) : 0;
    return shared.pieces * (a_items + (shared.b != nullptr ? plan_.col_panels : 0));
  }

  void PackItems(const Shared<T>& shared, int64_t last_piece, int64_t begin, int64_t end) const {
    const int64_t pieces = shared.pieces;
    const int64_t bundles = shared.a != nullptr ? CeilDiv(plan_.rows.parts, bundle()) : 0;
    for (int64_t item = begin; item < end; ++item) {
      if (item < pieces * bundles) {
        const bool along_k = a_.k_stride == 1;
        const int64_t piece = along_k ? item % pieces : item / bundles;
        const int64_t panel = (along_k ? item / pieces : item % bundles) * bundle();
        if (shared.first_piece + piece >= last_piece) continue;
        PackRowPanels(panel, Min(panel + bundle(), plan_.rows.parts), shared.first_piece + piece,
                      shared.a + piece * shared.a_numel + panel * kRowPanelNumel<T>);
      } else {
        const bool along_k = b_.k_stride == 1;
        const int64_t index = item - pieces * bundles;
        const int64_t piece = along_k ? index % pieces : index / plan_.col_panels;
        const int64_t panel = along_k ? index / pieces : index % plan_.col_panels;
        if (shared.first_piece + piece >= last_piece) continue;
        PackColPanel(panel, shared.first_piece + piece, shared.b + piece * shared.b_numel + panel * kColPanelNumel<T>);
      }
    }
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
    const T* a = nullptr;
    if (shared.a != nullptr) {
      a = shared.a + (piece_index * plan_.rows.parts + block.row_panel) * kRowPanelNumel<T>;
    } else {
      T* own_a = Scratch<T>(ScratchSlot::kGemmA, (block.row_panel_end - block.row_panel) * kRowPanelNumel<T>);
      PackRowPanels(block.row_panel, block.row_panel_end, piece, own_a);
      a = own_a;
    }
    T* own_b = shared.b != nullptr ? nullptr : Scratch<T>(ScratchSlot::kGemmB, kColPanelNumel<T>);
    for (int64_t panel = block.col_panel; panel < block.col_panel_end; ++panel) {
      if (own_b == nullptr) {
        const T* b = shared.b + (piece_index * plan_.col_panels + panel) * kColPanelNumel<T>;
        PanelAhead ahead;
        if (panel + 1 < block.col_panel_end) {
          ahead = PanelAhead({b + kColPanelNumel<T>, DTypeOf<T>(), 1, Tile<T>::kCols}, 0, Tile<T>::kCols, 0,
                             plan_.piece_size(piece));
        }
        MultiplyColumn(block, panel, piece, a, {b, Tile<T>::kCols, nullptr}, ahead);
        continue;
      }
      ColPanel b{own_b, Tile<T>::kCols, nullptr};
      if (RowsLieInPlace(panel)) {
        b = {static_cast<const T*>(b_.data) + plan_.piece_begin(piece) * b_.k_stride + panel * Tile<T>::kCols,
             b_.k_stride, own_b};
      } else {
        PackColPanel(panel, piece, own_b);
      }
      PanelAhead ahead;
      if (panel + 1 < block.col_panel_end) {
        ahead = PanelAhead(b_, (panel + 1) * Tile<T>::kCols, plan_.cols_of_panel(panel + 1), plan_.piece_begin(piece),
                           plan_.piece_size(piece));
      }
      MultiplyColumn(block, panel, piece, a, b, ahead);
    }
  }

  // A panel of B as the innermost product gets it: its rows, and where the first product shall pack them (null: they are).
  struct ColPanel {
    const T* rows;
    int64_t row_stride;
    T* packed;
  };

  // The panel's rows in B are as the innermost product reads them, but for the distance between them.
  bool RowsLieInPlace(int64_t panel) const {
    return kReadsRowsInPlace && b_.dtype == DTypeOf<T>() && b_.lane_stride == 1 &&
           plan_.cols_of_panel(panel) == Tile<T>::kCols;
  }

  // All rows of the block by one panel of columns.
  void MultiplyColumn(const Block& block, int64_t panel, int64_t piece, const T* a, ColPanel b,
                      PanelAhead ahead) const {
    if (block.row_panel + 1 == block.row_panel_end) b.packed = nullptr;  // one use: not worth a copy
    TileProduct<T> tile{.k_count = plan_.piece_size(piece),
                        .a = a,
                        .b = b.rows,
                        .ldb = b.row_stride,
                        .c = block.out + (panel - block.col_panel) * Tile<T>::kCols,
                        .ldc = block.out_stride,
                        .alpha = static_cast<T>(problem_.alpha),
                        .accumulate = piece > 0 || (direct_ && problem_.accumulate),
                        .packed = b.packed};
    const int width = plan_.cols_of_panel(panel);
    int64_t row = block.row;
    for (int64_t p = block.row_panel; p < block.row_panel_end; ++p) {
      const int64_t next_row = plan_.rows.begin(p + 1);
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
  const GemmProblem problem =
      !dense_rows && dense_cols && !HasEpilogue(given.epilogue) ? Transposed(given) : given;
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
