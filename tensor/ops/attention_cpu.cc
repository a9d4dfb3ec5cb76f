// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/attention.h"
#include "tensor/ops/cpu_kernel.h"
#include "tensor/ops/gemm_serial.h"
#include "tensor/scratch.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

constexpr int64_t kBlock = 64;               // queries and keys of one block of scores
constexpr int64_t kFusedBackwardHeads = 16;  // from so many (batch, key head) pairs on, backward is one task for each
constexpr int64_t kChunkWork = 65536;        // multiply-adds worth handing to another thread

TESSERA_ALWAYS_INLINE int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
TESSERA_ALWAYS_INLINE int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }
TESSERA_ALWAYS_INLINE int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Sizes {
  Sizes(const ConstView& q, const ConstView& k, bool is_causal)
      : batch(q.size(0)),
        queries(q.size(1)),
        heads(q.size(2)),
        width(q.size(3)),
        keys(k.size(1)),
        kv_heads(k.size(2)),
        group(kv_heads > 0 ? heads / kv_heads : 0),
        query_blocks(CeilDiv(queries, kBlock)),
        key_blocks(CeilDiv(keys, kBlock)),
        causal(is_causal) {}
  int64_t batch, queries, heads, width, keys, kv_heads, group, query_blocks, key_blocks;
  bool causal;

  // How many keys query i sees: the keys [0, that). Not negative.
  TESSERA_ALWAYS_INLINE int64_t VisibleKeys(int64_t query) const {
    return causal ? Max(Min(query + keys - queries + 1, keys), 0) : keys;
  }
  // The first query that sees key j.
  TESSERA_ALWAYS_INLINE int64_t FirstQuery(int64_t key) const { return causal ? Max(key - (keys - queries), 0) : 0; }
  int64_t Grain(int64_t tasks) const {
    const int64_t work = batch * heads * queries * keys * width / Max(tasks, 1);
    return Max(1, kChunkWork / Max(work, 1));
  }
};

// One head's rows: `rows` apart by a stride, features dense.
template <class T>
struct Head {
  T* data;
  int64_t stride;
  TESSERA_ALWAYS_INLINE T* row(int64_t index) const { return data + index * stride; }
};
template <class T>
TESSERA_ALWAYS_INLINE Head<const T> HeadOf(const ConstView& view, int64_t batch, int64_t head) {
  return {view.as<T>() + batch * view.stride(0) + head * view.stride(2), view.stride(1)};
}
template <class T>
TESSERA_ALWAYS_INLINE Head<T> HeadOf(const View& view, int64_t batch, int64_t head) {
  return {view.as<T>() + batch * view.stride(0) + head * view.stride(2), view.stride(1)};
}

TESSERA_ALWAYS_INLINE void Multiply(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& b,
                                    const GemmTarget& c, double alpha, bool accumulate) {
  GemmProblem problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.a = a;
  problem.b = b;
  problem.c = c;
  problem.alpha = alpha;
  problem.accumulate = accumulate;
  GemmSerial(problem);
}

template <class T>
TESSERA_ALWAYS_INLINE void ZeroRows(const Head<T>& head, int64_t begin, int64_t end, int64_t width) {
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t i = 0; i < width; ++i) head.row(row)[i] = Store<T>(0.0f);
  }
}

// Where a block of sums grows: in the result itself if it has the accumulation type, else in scratch.
template <class T>
struct Sums {
  using A = Acc<T>;
  static constexpr bool kInPlace = std::is_same_v<T, A>;
  A* data;
  int64_t stride;
  Sums(const Head<T>& head, int64_t first_row, A* scratch, int64_t width) {
    if constexpr (kInPlace) {
      data = head.row(first_row);
      stride = head.stride;
    } else {
      data = scratch;
      stride = width;
    }
  }
  TESSERA_ALWAYS_INLINE A* row(int64_t index) const { return data + index * stride; }
  TESSERA_ALWAYS_INLINE GemmTarget target() const { return Target(data, stride, 1); }
  void Finish(const Head<T>& head, int64_t first_row, int64_t rows, int64_t width) const {
    if constexpr (!kInPlace) {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < width; ++i) head.row(first_row + r)[i] = Store<T>(row(r)[i]);
      }
    }
  }
};

// ---- forward ----

// A block of queries of one head, over all keys that it sees.
template <class T>
class ForwardBlock {
 public:
  using A = Acc<T>;
  ForwardBlock(const AttentionForwardArgs& args, const Sizes& sizes, int64_t batch, int64_t head, int64_t first)
      : sizes_(sizes),
        scale_(args.scale),
        first_(first),
        rows_(Min(kBlock, sizes.queries - first)),
        q_(HeadOf<T>(args.q, batch, head)),
        k_(HeadOf<T>(args.k, batch, head / sizes.group)),
        v_(HeadOf<T>(args.v, batch, head / sizes.group)),
        y_(HeadOf<T>(args.y, batch, head)),
        log_sum_(args.log_sum.present() ? args.log_sum.as<A>() + (batch * sizes.heads + head) * sizes.queries + first
                                        : nullptr),
        scores_(static_cast<A*>(ThreadScratch(
            ScratchSlot::kAttention, (kBlock * kBlock + kBlock * sizes.width) * static_cast<int64_t>(sizeof(A))))),
        sums_(y_, first, scores_ + kBlock * kBlock, sizes.width) {}

  void Run() {
    for (int64_t r = 0; r < rows_; ++r) {
      max_[r] = -INFINITY;
      sum_[r] = 0;
    }
    const int64_t visible = sizes_.VisibleKeys(first_ + rows_ - 1);
    for (int64_t key = 0; key < visible; key += kBlock) AddKeys(key, Min(kBlock, visible - key));
    for (int64_t r = 0; r < rows_; ++r) {
      A* row = sums_.row(r);
      const bool blind = max_[r] == -INFINITY;  // nothing was seen: whatever is there counts for nothing
      const A factor = A(1) / sum_[r];
      for (int64_t i = 0; i < sizes_.width; ++i) row[i] = blind ? A(0) : row[i] * factor;
      if (log_sum_ != nullptr) log_sum_[r] = blind ? -INFINITY : max_[r] + std::log(sum_[r]);
    }
    sums_.Finish(y_, first_, rows_, sizes_.width);
  }

 private:
  void AddKeys(int64_t key, int64_t count) {
    Multiply(rows_, count, sizes_.width, Operand(q_.row(first_), q_.stride, 1), Operand(k_.row(key), 1, k_.stride),
             Target(scores_, kBlock, 1), scale_, false);
    for (int64_t r = 0; r < rows_; ++r) {
      A* score = scores_ + r * kBlock;
      for (int64_t j = Max(sizes_.VisibleKeys(first_ + r) - key, 0); j < count; ++j) score[j] = -INFINITY;
      const A max = MaxOrNan(max_[r], MaxOf<A>(count, -INFINITY, [&](int64_t j) { return score[j]; }));
      if (max == -INFINITY) {
        for (int64_t j = 0; j < count; ++j) score[j] = 0;
        continue;
      }
      for (int64_t j = 0; j < count; ++j) score[j] = Exp(score[j] - max);
      const A added = SumOf<A>(count, [&](int64_t j) { return score[j]; });
      if (key > 0 && max != max_[r]) {
        const A shrink = Exp(max_[r] - max);
        sum_[r] *= shrink;
        A* row = sums_.row(r);
        for (int64_t i = 0; i < sizes_.width; ++i) row[i] *= shrink;
      }
      sum_[r] += added;
      max_[r] = max;
    }
    Multiply(rows_, sizes_.width, count, Operand(scores_, kBlock, 1), Operand(v_.row(key), v_.stride, 1),
             sums_.target(), 1, key > 0);
  }

  const Sizes& sizes_;
  double scale_;
  int64_t first_, rows_;
  Head<const T> q_, k_, v_;
  Head<T> y_;
  A* log_sum_;
  A* scores_;  // (rows, kBlock)
  Sums<T> sums_;
  A max_[kBlock], sum_[kBlock];
};

template <class T>
void Forward(const AttentionForwardArgs& args) {
  const Sizes sizes(args.q, args.k, args.causal);
  const int64_t tasks = sizes.batch * sizes.heads * sizes.query_blocks;
  ParallelFor(tasks, sizes.Grain(tasks), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task / sizes.query_blocks;
      ForwardBlock<T>(args, sizes, head / sizes.heads, head % sizes.heads, task % sizes.query_blocks * kBlock).Run();
    }
  });
}

// ---- backward ----

// A thread's blocks. Scores lie transposed, a row for each key: then three of the four products that read them go along
// their rows.
template <class A>
struct BackwardScratch {
  A *weights, *dscores;  // P^T and scale * dS^T, (keys, kBlock)
  A *sums, *more_sums;   // (kBlock, D)
  explicit BackwardScratch(int64_t width) {
    constexpr int64_t kScores = kBlock * kBlock;
    weights = static_cast<A*>(
        ThreadScratch(ScratchSlot::kAttention, 2 * (kScores + kBlock * width) * static_cast<int64_t>(sizeof(A))));
    dscores = weights + kScores;
    sums = dscores + kScores;
    more_sums = sums + kBlock * width;
  }
};

// What backward does for one query head.
template <class T>
class BackwardHead {
 public:
  using A = Acc<T>;
  BackwardHead(const AttentionBackwardArgs& args, const Sizes& sizes, int64_t batch, int64_t head,
               const BackwardScratch<A>& scratch)
      : sizes_(sizes),
        scratch_(scratch),
        scale_(args.scale),
        q_(HeadOf<T>(args.q, batch, head)),
        dy_(HeadOf<T>(args.dy, batch, head)),
        k_(HeadOf<T>(args.k, batch, head / sizes.group)),
        v_(HeadOf<T>(args.v, batch, head / sizes.group)),
        log_sum_(args.log_sum.as<A>() + (batch * sizes.heads + head) * sizes.queries),
        delta_(args.workspace.as<A>() + (batch * sizes.heads + head) * sizes.queries) {}

  // P^T and scale * dS^T of a block.
  void MakeBlock(int64_t query, int64_t rows, int64_t key, int64_t count) const {
    Multiply(count, rows, sizes_.width, Operand(k_.row(key), k_.stride, 1), Operand(q_.row(query), 1, q_.stride),
             Target(scratch_.weights, kBlock, 1), scale_, false);
    Multiply(count, rows, sizes_.width, Operand(v_.row(key), v_.stride, 1), Operand(dy_.row(query), 1, dy_.stride),
             Target(scratch_.dscores, kBlock, 1), 1, false);
    A shift[kBlock];  // of a query that sees nothing: such that its weights come out as 0
    for (int64_t i = 0; i < rows; ++i) shift[i] = log_sum_[query + i] == -INFINITY ? INFINITY : log_sum_[query + i];
    const A* delta = delta_ + query;
    const A scale = static_cast<A>(scale_);
    for (int64_t j = 0; j < count; ++j) {
      A *weight = scratch_.weights + j * kBlock, *dscore = scratch_.dscores + j * kBlock;
      for (int64_t i = 0; i < rows; ++i) weight[i] = Exp(weight[i] - shift[i]);
      const int64_t unseen = Min(Max(sizes_.FirstQuery(key + j) - query, 0), rows);
      for (int64_t i = 0; i < unseen; ++i) weight[i] = 0;
      for (int64_t i = 0; i < rows; ++i) dscore[i] = weight[i] * (dscore[i] - delta[i]) * scale;
    }
  }

  void AddToKeys(int64_t query, int64_t rows, int64_t count, const Sums<T>& dk, const Sums<T>& dv,
                 bool accumulate) const {
    Multiply(count, sizes_.width, rows, Operand(scratch_.weights, kBlock, 1), Operand(dy_.row(query), dy_.stride, 1),
             dv.target(), 1, accumulate);
    Multiply(count, sizes_.width, rows, Operand(scratch_.dscores, kBlock, 1), Operand(q_.row(query), q_.stride, 1),
             dk.target(), 1, accumulate);
  }

  void AddToQueries(int64_t rows, int64_t key, int64_t count, const Sums<T>& dq, bool accumulate) const {
    Multiply(rows, sizes_.width, count, Operand(scratch_.dscores, 1, kBlock), Operand(k_.row(key), k_.stride, 1),
             dq.target(), 1, accumulate);
  }

 private:
  const Sizes& sizes_;
  const BackwardScratch<A>& scratch_;
  double scale_;
  Head<const T> q_, dy_, k_, v_;
  const A *log_sum_, *delta_;
};

// dk and dv of a block of keys, over all query heads that share them. With `dq_too` also their part of dq, added in
// place.
template <class T>
void KeyGradients(const AttentionBackwardArgs& args, const Sizes& sizes, int64_t batch, int64_t kv_head, int64_t key,
                  bool dq_too) {
  const int64_t count = Min(kBlock, sizes.keys - key), width = sizes.width;
  const Head<T> dk = HeadOf<T>(args.dk, batch, kv_head), dv = HeadOf<T>(args.dv, batch, kv_head);
  const BackwardScratch<Acc<T>> scratch(width);
  const Sums<T> dk_sums(dk, key, scratch.sums, width), dv_sums(dv, key, scratch.more_sums, width);
  bool accumulate = false;
  for (int64_t head = kv_head * sizes.group; head < (kv_head + 1) * sizes.group; ++head) {
    const BackwardHead<T> backward(args, sizes, batch, head, scratch);
    for (int64_t query = sizes.FirstQuery(key) / kBlock * kBlock; query < sizes.queries; query += kBlock) {
      const int64_t rows = Min(kBlock, sizes.queries - query);
      backward.MakeBlock(query, rows, key, count);
      backward.AddToKeys(query, rows, count, dk_sums, dv_sums, accumulate);
      accumulate = true;
      if (!dq_too) continue;
      const Sums<T> dq_sums(HeadOf<T>(args.dq, batch, head), query, nullptr, width);
      backward.AddToQueries(rows, key, count, dq_sums, true);
    }
  }
  if (accumulate) {
    dk_sums.Finish(dk, key, count, width);
    dv_sums.Finish(dv, key, count, width);
  } else {  // no query sees these keys
    ZeroRows(dk, key, key + count, width);
    ZeroRows(dv, key, key + count, width);
  }
}

// dq of a block of queries.
template <class T>
void QueryGradients(const AttentionBackwardArgs& args, const Sizes& sizes, int64_t batch, int64_t head, int64_t query) {
  const int64_t rows = Min(kBlock, sizes.queries - query), visible = sizes.VisibleKeys(query + rows - 1);
  const Head<T> dq = HeadOf<T>(args.dq, batch, head);
  if (visible == 0) return ZeroRows(dq, query, query + rows, sizes.width);
  const BackwardScratch<Acc<T>> scratch(sizes.width);
  const BackwardHead<T> backward(args, sizes, batch, head, scratch);
  const Sums<T> sums(dq, query, scratch.sums, sizes.width);
  for (int64_t key = 0; key < visible; key += kBlock) {
    const int64_t count = Min(kBlock, visible - key);
    backward.MakeBlock(query, rows, key, count);
    backward.AddToQueries(rows, key, count, sums, key > 0);
  }
  sums.Finish(dq, query, rows, sizes.width);
}

// workspace[b, h, t] = sum over D of dy * y.
template <class T>
void MakeDelta(const AttentionBackwardArgs& args, const Sizes& sizes) {
  using A = Acc<T>;
  A* delta = args.workspace.as<A>();
  const int64_t tasks = sizes.batch * sizes.heads;
  ParallelFor(tasks, Max(1, kChunkWork / Max(sizes.queries * sizes.width, 1)), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const Head<const T> y = HeadOf<T>(args.y, task / sizes.heads, task % sizes.heads);
      const Head<const T> dy = HeadOf<T>(args.dy, task / sizes.heads, task % sizes.heads);
      for (int64_t t = 0; t < sizes.queries; ++t) {
        const T *a = y.row(t), *b = dy.row(t);
        delta[task * sizes.queries + t] = SumOf<A>(sizes.width, [&](int64_t i) { return Load(a[i]) * Load(b[i]); });
      }
    }
  });
}

// With many heads a task makes all gradients of one key head, each block of scores once. With few, or where dq cannot
// grow in place, two passes make the blocks twice and have a task for each block.
template <class T>
void Backward(const AttentionBackwardArgs& args) {
  const Sizes sizes(args.q, args.k, args.causal);
  MakeDelta<T>(args, sizes);
  const int64_t pairs = sizes.batch * sizes.kv_heads;
  if (Sums<T>::kInPlace && pairs >= kFusedBackwardHeads) {
    ParallelFor(pairs, sizes.Grain(pairs), [&](int64_t begin, int64_t end) {
      for (int64_t pair = begin; pair < end; ++pair) {
        const int64_t batch = pair / sizes.kv_heads, kv_head = pair % sizes.kv_heads;
        for (int64_t head = kv_head * sizes.group; head < (kv_head + 1) * sizes.group; ++head) {
          ZeroRows(HeadOf<T>(args.dq, batch, head), 0, sizes.queries, sizes.width);
        }
        for (int64_t key = 0; key < sizes.keys; key += kBlock) KeyGradients<T>(args, sizes, batch, kv_head, key, true);
      }
    });
    return;
  }
  const int64_t key_tasks = pairs * sizes.key_blocks, query_tasks = sizes.batch * sizes.heads * sizes.query_blocks;
  ParallelFor(key_tasks, sizes.Grain(key_tasks), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t pair = task / sizes.key_blocks;
      KeyGradients<T>(args, sizes, pair / sizes.kv_heads, pair % sizes.kv_heads, task % sizes.key_blocks * kBlock,
                      false);
    }
  });
  ParallelFor(query_tasks, sizes.Grain(query_tasks), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task / sizes.query_blocks;
      QueryGradients<T>(args, sizes, head / sizes.heads, head % sizes.heads, task % sizes.query_blocks * kBlock);
    }
  });
}

}  // namespace

void AttentionForward(const AttentionForwardArgs& args) {
  DispatchFloating(args.q.dtype, [&](auto tag) { Forward<typename decltype(tag)::type>(args); });
}

void AttentionBackward(const AttentionBackwardArgs& args) {
  DispatchFloating(args.q.dtype, [&](auto tag) { Backward<typename decltype(tag)::type>(args); });
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
