// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi_group.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include <mpi.h>

#include "comm/backoff.h"
#include "comm/call.h"
#include "comm/rank_order_sum.h"

namespace tessera::comm {

struct MpiGroup::Comms {
  Comms() = default;
  Comms(const Comms&) = delete;
  Comms& operator=(const Comms&) = delete;
  ~Comms() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    // After a failure messages may be under way that a later communicator of the same number would receive.
    if (finalized != 0 || family->failed()) return;
    if (stream != MPI_COMM_NULL) MPI_Comm_free(&stream);
    if (host != MPI_COMM_NULL) MPI_Comm_free(&host);
  }

  std::shared_ptr<MessageFamily> family;
  MPI_Comm stream = MPI_COMM_NULL, host = MPI_COMM_NULL;
  std::vector<int> names;  // the ranks' numbers in the group that all came from
  int rank = 0;
  int64_t longest_message_bytes = 0;

  int size() const { return static_cast<int>(names.size()); }
  int name(int peer) const { return names[static_cast<size_t>(peer)]; }
};

namespace {

// An AllReduce of no more bytes is summed whole by every rank: one exchange instead of two.
constexpr int64_t kSmallBytes = 8192;
// What a rank holds of each other rank's piece while it sums: two blocks, of together no more than this over all ranks.
constexpr int64_t kBlockBytes = 1 << 20, kBlocksBytes = 32 << 20;

using Comms = MpiGroup::Comms;

// Messages under way, of one collective or of a step of one.
class Messages {
 public:
  Messages(const Comms& comms, MPI_Comm comm, int tag, const Call& call)
      : comms_(comms), comm_(comm), tag_(tag), call_(call) {}
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  void Send(int to, const std::byte* data, int64_t bytes) {
    ForEachPart(bytes, [&](int64_t begin, int size) {
      CheckMpi(MPI_Isend(data + begin, size, MPI_BYTE, to, tag_, comm_, Add(to, -1)), "MPI_Isend");
    });
  }
  // As one message, whatever its length: for a receiver that asks how long it is.
  void SendWhole(int to, const std::string& text) {
    CheckMpi(MPI_Isend(text.data(), static_cast<int>(text.size()), MPI_BYTE, to, tag_, comm_, Add(to, -1)),
             "MPI_Isend");
  }
  void Receive(int from, std::byte* data, int64_t bytes) {
    ForEachPart(bytes, [&](int64_t begin, int size) {
      CheckMpi(MPI_Irecv(data + begin, size, MPI_BYTE, from, tag_, comm_, Add(from, size)), "MPI_Irecv");
    });
  }
  // Receives a message of any length into `text`, if it has come.
  bool TryReceive(int from, std::string* text) {
    int there = 0, size = 0;
    MPI_Message message;
    MPI_Status status;
    CheckMpi(MPI_Improbe(from, tag_, comm_, &there, &message, &status), "MPI_Improbe");
    if (there == 0) return false;
    MPI_Get_count(&status, MPI_BYTE, &size);
    text->resize(static_cast<size_t>(size));
    CheckMpi(MPI_Imrecv(text->data(), size, MPI_BYTE, &message, Add(from, size)), "MPI_Imrecv");
    return true;
  }

  // All have arrived, and what was sent may change.
  void Wait() {
    comms_.family->Await([&] { return AreDone(); }, [&] { return Silence(); });
    requests_.clear();
    about_.clear();
  }
  // Gives up what is under way; false: some of it still uses its memory.
  bool Cancel() noexcept {
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] != MPI_REQUEST_NULL && about_[i].bytes >= 0) MPI_Cancel(&requests_[i]);
    }
    int done = requests_.empty() ? 1 : 0;
    for (Backoff backoff(false); done == 0 && backoff.waited_s() < 0.2; backoff.Pause()) {
      MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE);
    }
    return done != 0;
  }
  std::string Silence() {
    std::vector<int> missing;
    for (size_t i = 0; i < requests_.size(); ++i) {
      int done = 0;
      MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE);
      if (done == 0) missing.push_back(comms_.name(about_[i].peer));
      if (done != 0) about_[i].bytes = -1;  // its status is gone
    }
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());  // several parts of a message
    return missing.empty() ? std::string() : SilenceOf(missing);
  }
  std::string SilenceOf(const std::vector<int>& missing) const {
    return Str("comm: ", NoSignOf(missing, comms_.family->timeout_s()), "; rank ", comms_.name(comms_.rank),
               " waits in ", call_.ToString());
  }

 private:
  struct About {
    int peer;
    int bytes;  // to receive; -1: it is a send
  };

  template <class Part>
  void ForEachPart(int64_t bytes, Part part) {
    for (int64_t begin = 0; begin < bytes; begin += comms_.longest_message_bytes) {
      part(begin, static_cast<int>(std::min(bytes - begin, comms_.longest_message_bytes)));
    }
  }
  MPI_Request* Add(int peer, int bytes) {
    about_.push_back({peer, bytes});
    requests_.push_back(MPI_REQUEST_NULL);
    return &requests_.back();
  }
  bool AreDone() {
    int done = 0;
    statuses_.resize(requests_.size());
    CheckMpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data()), "MPI_Testall");
    if (done == 0) return false;
    for (size_t i = 0; i < requests_.size(); ++i) {
      int bytes = 0;
      if (about_[i].bytes >= 0) MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes);
      if (about_[i].bytes < 0 || bytes == about_[i].bytes) continue;
      throw Error(Str("rank ", comms_.name(about_[i].peer), " sent ", bytes, " bytes where rank ",
                      comms_.name(comms_.rank), " expects ", about_[i].bytes));
    }
    return true;
  }

  const Comms& comms_;
  MPI_Comm comm_;
  int tag_;
  const Call& call_;
  std::vector<MPI_Request> requests_;
  std::vector<About> about_;
  std::vector<MPI_Status> statuses_;
};

// One collective on a stream, with the memory that its messages use.
struct Transfer {
  Transfer(const Comms& the_comms, uint64_t number, const Call& the_call)
      : comms(the_comms),
        call(the_call),
        messages{{comms, comms.stream, MpiTagOf(number), call}, {comms, comms.stream, MpiTagOf(number), call}} {}

  int rank() const { return comms.rank; }
  int size() const { return comms.size(); }
  template <class Body>
  void ForOthers(Body body) const {  // not all to the same rank at a time
    for (int step = 1; step < size(); ++step) body((rank() + step) % size());
  }
  void Wait() { messages[0].Wait(); }

  const Comms& comms;
  const Call& call;
  Messages messages[2];
  std::vector<std::byte> scratch;
};

void CopyBytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// Sends every other rank its piece of `source`, and sums this rank's piece over ranks into `out`. Goes block by block, so
// that the others' values take little memory; the next block is under way while one is summed.
template <class PieceOfRank>
void SumOwnPiece(Transfer& t, const std::byte* source, PieceOfRank piece_of, std::byte* out) {
  const int64_t item = ItemSize(t.call.dtype);
  const int64_t block_bytes =
      std::min(std::clamp(kBlocksBytes / 2 / t.size(), int64_t{4096}, kBlockBytes), t.comms.longest_message_bytes);
  const int64_t block = std::max(block_bytes / item, int64_t{1});
  const Piece mine = piece_of(t.rank());
  int64_t longest = 0;
  for (int p = 0; p < t.size(); ++p) longest = std::max(longest, piece_of(p).count);
  const int64_t rounds = (longest + block - 1) / block;
  const int64_t held = std::min(block, mine.count) * item;  // of each rank's block
  t.scratch.resize(static_cast<size_t>(2 * held * t.size()));
  const auto block_of = [&](const Piece& piece, int64_t round) {
    const int64_t begin = std::min(round * block, piece.count);
    return Piece{piece.begin + begin, std::min(block, piece.count - begin)};
  };
  const auto held_of = [&](int64_t round, int p) { return t.scratch.data() + (round % 2 * t.size() + p) * held; };
  const auto start = [&](int64_t round) {
    Messages& messages = t.messages[round % 2];
    const int64_t expected = block_of(mine, round).count * item;
    t.ForOthers([&](int p) { messages.Receive(p, held_of(round, p), expected); });
    t.ForOthers([&](int p) {
      const Piece part = block_of(piece_of(p), round);
      messages.Send(p, source + part.begin * item, part.count * item);
    });
  };
  if (rounds > 0) start(0);
  std::vector<const std::byte*> sources(static_cast<size_t>(t.size()));
  for (int64_t round = 0; round < rounds; ++round) {
    if (round + 1 < rounds) start(round + 1);
    t.messages[round % 2].Wait();
    const Piece part = block_of(mine, round);
    for (int p = 0; p < t.size(); ++p) {
      sources[static_cast<size_t>(p)] = p == t.rank() ? source + part.begin * item : held_of(round, p);
    }
    SumInRankOrder(t.call.dtype, sources, out + (part.begin - mine.begin) * item, part.count);
  }
}

void SumWhole(Transfer& t, std::byte* data) {
  const int64_t bytes = t.call.count * ItemSize(t.call.dtype);
  t.scratch.resize(static_cast<size_t>(t.size() * bytes));
  std::vector<const std::byte*> sources(static_cast<size_t>(t.size()), data);
  t.ForOthers([&](int p) {
    std::byte* theirs = t.scratch.data() + p * bytes;
    sources[static_cast<size_t>(p)] = theirs;
    t.messages[0].Receive(p, theirs, bytes);
  });
  t.ForOthers([&](int p) { t.messages[0].Send(p, data, bytes); });
  t.Wait();
  SumInRankOrder(t.call.dtype, sources, data, t.call.count);
}

class MpiRank final : public Communicator {
 public:
  explicit MpiRank(std::shared_ptr<Comms> comms) : comms_(std::move(comms)) {}

  int rank() const override { return comms_->rank; }
  int size() const override { return comms_->size(); }

  void AllGather(const Tensor& one, const Tensor& all, Stream& stream, const Options& options) override {
    const Call call = CheckAllGather(rank(), size(), one, all, options);
    const std::byte* source = ReadStart(one);
    std::byte* target = WriteStart(all);
    Queue(stream, call, one, all, [source, target](Transfer& t) {
      const int64_t bytes = t.call.count * ItemSize(t.call.dtype);
      t.ForOthers([&](int p) { t.messages[0].Receive(p, target + p * PieceStep(t.call), bytes); });
      t.ForOthers([&](int p) { t.messages[0].Send(p, source, bytes); });
      CopyBytes(target + t.rank() * PieceStep(t.call), source, bytes);
      t.Wait();
    });
  }

  void ReduceScatter(const Tensor& all, const Tensor& one, Stream& stream, const Options& options) override {
    const Call call = CheckReduceScatter(rank(), size(), all, one, options);
    const std::byte* source = ReadStart(all);
    std::byte* target = WriteStart(one);
    Queue(stream, call, all, one, [source, target](Transfer& t) {
      const int64_t step = PieceStep(t.call) / ItemSize(t.call.dtype);
      SumOwnPiece(
          t, source,
          [&](int p) {
            return Piece{p * step, t.call.count};
          },
          target);
    });
  }

  void AllReduce(const Tensor& buffer, Stream& stream, const Options& options) override {
    const Call call = CheckAllReduce(buffer, options);
    std::byte* data = WriteStart(buffer);
    Queue(stream, call, buffer, buffer, [data](Transfer& t) {
      const int64_t item = ItemSize(t.call.dtype);
      if (t.call.count * item <= kSmallBytes) return SumWhole(t, data);
      const auto piece_of = [&](int p) { return PieceOf(t.call.count, p, t.size()); };
      const Piece mine = piece_of(t.rank());
      SumOwnPiece(t, data, piece_of, data + mine.begin * item);
      t.ForOthers([&](int p) {
        const Piece piece = piece_of(p);
        t.messages[0].Receive(p, data + piece.begin * item, piece.count * item);
      });
      t.ForOthers([&](int p) { t.messages[0].Send(p, data + mine.begin * item, mine.count * item); });
      t.Wait();
    });
  }

  void Broadcast(const Tensor& buffer, int root, Stream& stream, const Options& options) override {
    const Call call = CheckBroadcast(size(), buffer, root, options);
    std::byte* data = rank() == root ? const_cast<std::byte*>(ReadStart(buffer)) : WriteStart(buffer);
    Queue(stream, call, buffer, buffer, [data](Transfer& t) {
      const int64_t bytes = t.call.count * ItemSize(t.call.dtype);
      if (t.rank() == t.call.root) {
        t.ForOthers([&](int p) { t.messages[0].Send(p, data, bytes); });
      } else {
        t.messages[0].Receive(t.call.root, data, bytes);
      }
      t.Wait();
    });
  }

  void AllToAll(const Tensor& send, const Tensor& receive, Stream& stream, const Options& options) override {
    const Call call = CheckAllToAll(size(), send, receive, options);
    const std::byte* source = ReadStart(send);
    std::byte* target = WriteStart(receive);
    Queue(stream, call, send, receive, [source, target](Transfer& t) {
      const int64_t bytes = t.call.count * ItemSize(t.call.dtype);
      t.ForOthers([&](int p) { t.messages[0].Receive(p, target + p * bytes, bytes); });
      t.ForOthers([&](int p) { t.messages[0].Send(p, source + p * PieceStep(t.call), bytes); });
      CopyBytes(target + t.rank() * bytes, source + t.rank() * PieceStep(t.call), bytes);
      t.Wait();
    });
  }

  std::vector<std::string> AllGatherBytes(std::string_view mine) override {
    return Exchange({.op = Op::kAllGatherBytes}, mine);
  }
  void Barrier() override { Exchange({.op = Op::kBarrier}, {}); }
  std::unique_ptr<Communicator> Split(int color, int key) override;
  void Abort(std::string_view reason) noexcept override { comms_->family->Fail(reason); }

 private:
  // Queues `body` as the next collective. The tensors are captured to keep their memory.
  template <class Body>
  void Queue(Stream& stream, const Call& call, const Tensor& read, const Tensor& written, Body body) {
    RequireMpiThreads(stream.kind());
    comms_->family->ThrowIfFailed();
    stream.Run([comms = comms_, number = stream_calls_++, call, read, written, body] {
      comms->family->ThrowIfFailed();
      Transfer transfer(*comms, number, call);
      FailingAsOne(
          *comms, call, [&] { body(transfer); },
          [&] {
            const bool ended = transfer.messages[0].Cancel() & transfer.messages[1].Cancel();
            if (ended) return;
            // A message that cannot be taken back goes on using its memory: that is never given back.
            new std::pair(read, written);
            new std::vector(std::move(transfer.scratch));
          });
    });
  }

  // Runs `work`; its error ends the group.
  template <class Work, class CleanUp>
  static void FailingAsOne(const Comms& comms, const Call& call, Work work, CleanUp clean_up) {
    try {
      work();
    } catch (const AbortedError&) {
      clean_up();
      throw;
    } catch (const std::exception& error) {
      comms.family->Fail(Str("comm: ", call.ToString(), " at rank ", comms.name(comms.rank), ": ", error.what()));
      clean_up();
      comms.family->ThrowIfFailed();
    }
  }

  std::vector<std::string> Exchange(const Call& call, std::string_view mine);

  std::shared_ptr<Comms> comms_;
  uint64_t stream_calls_ = 0, host_calls_ = 0;
};

// What each rank sends begins with the call.
std::vector<std::string> MpiRank::Exchange(const Call& call, std::string_view mine) {
  const Comms& comms = *comms_;
  RequireMpiThreads(StreamKind::kInline);
  comms.family->ThrowIfFailed();
  const std::string message = std::string(reinterpret_cast<const char*>(&call), sizeof call) + std::string(mine);
  if (static_cast<int64_t>(message.size()) > int64_t{1} << 30) {
    throw Error(Str("all_gather_bytes: ", mine.size(), " bytes are too many; at most 1 GiB goes"));
  }
  std::vector<std::string> all(static_cast<size_t>(size()));
  std::vector<int> awaited;
  Messages messages(comms, comms.host, MpiTagOf(host_calls_++), call);
  const auto receive = [&] {
    std::erase_if(awaited, [&](int p) { return messages.TryReceive(p, &all[static_cast<size_t>(p)]); });
    return awaited.empty();
  };
  const auto exchange = [&] {
    for (int step = 1; step < size(); ++step) {
      const int p = (rank() + step) % size();
      messages.SendWhole(p, message);
      awaited.push_back(p);
    }
    comms.family->Await(receive, [&] {
      std::vector<int> missing;
      for (const int p : awaited) missing.push_back(comms.name(p));
      std::sort(missing.begin(), missing.end());
      return messages.SilenceOf(missing);
    });
    messages.Wait();
    for (int p = 0; p < size(); ++p) {
      std::string& text = all[static_cast<size_t>(p)];
      if (p == rank()) {
        text = mine;
        continue;
      }
      Call theirs;
      if (text.size() < sizeof theirs) throw Error("a message without a call");
      std::memcpy(&theirs, text.data(), sizeof theirs);
      if (!(theirs == call)) throw Error(Disagreement(comms.name(rank()), call, comms.name(p), theirs));
      text.erase(0, sizeof theirs);
    }
  };
  FailingAsOne(comms, call, exchange, [&] {
    if (messages.Cancel()) return;
    new std::string(message);
    new std::vector(std::move(all));
  });
  return all;
}

std::unique_ptr<Communicator> MpiRank::Split(int color, int key) {
  struct Wish {
    int color, key, rank;
  };
  const Wish mine{color, key, rank()};
  std::vector<Wish> members;
  std::set<int> colors;
  for (const std::string& text : Exchange({.op = Op::kSplit}, {reinterpret_cast<const char*>(&mine), sizeof mine})) {
    Wish wish;
    std::memcpy(&wish, text.data(), sizeof wish);
    colors.insert(wish.color);
    if (wish.color == color) members.push_back(wish);
  }
  std::sort(members.begin(), members.end(),
            [](const Wish& a, const Wish& b) { return std::pair(a.key, a.rank) < std::pair(b.key, b.rank); });
  auto part = std::make_shared<Comms>();
  part->family = comms_->family;
  part->longest_message_bytes = comms_->longest_message_bytes;
  for (const Wish& wish : members) {
    if (wish.rank == rank()) part->rank = static_cast<int>(part->names.size());
    part->names.push_back(comms_->name(wish.rank));
  }
  // MPI's colors are not negative. All ranks are here, so this does not wait for long.
  const int index = static_cast<int>(std::distance(colors.begin(), colors.find(color)));
  CheckMpi(MPI_Comm_split(comms_->host, index, part->rank, &part->host), "MPI_Comm_split");
  CheckMpi(MPI_Comm_dup(part->host, &part->stream), "MPI_Comm_dup");
  return std::make_unique<MpiRank>(std::move(part));
}

}  // namespace

MpiGroup::MpiGroup(int size, const MpiOptions& options) : comms_(std::make_shared<Comms>()) {
  const MpiProcess& facts = StartMpi(options.timeout_s);
  if (size < 1 || size > facts.size || facts.rank >= size) {
    throw Error(Str("mpi: a group of ", size, " ranks at rank ", facts.rank, " of a job of ", facts.size));
  }
  comms_->family = MakeMpiFamily(size);
  comms_->family->SetTimeout(options.timeout_s);
  comms_->longest_message_bytes = std::min(options.longest_message_bytes, int64_t{1} << 30);
  comms_->rank = facts.rank;
  for (int rank = 0; rank < size; ++rank) comms_->names.push_back(rank);
  comms_->family->AwaitHello();  // what follows waits without a limit
  MPI_Group world, mine;
  CheckMpi(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  CheckMpi(MPI_Group_incl(world, size, comms_->names.data(), &mine), "MPI_Group_incl");
  CheckMpi(MPI_Comm_create_group(MPI_COMM_WORLD, mine, 0, &comms_->host), "MPI_Comm_create_group");
  CheckMpi(MPI_Comm_dup(comms_->host, &comms_->stream), "MPI_Comm_dup");
  MPI_Group_free(&mine);
  MPI_Group_free(&world);
}
MpiGroup::~MpiGroup() = default;

std::unique_ptr<Communicator> MpiGroup::Rank() { return std::make_unique<MpiRank>(comms_); }
std::shared_ptr<LedgerBoard> MpiGroup::board() { return std::make_shared<MessageBoard>(comms_->family); }
MessageFamily& MpiGroup::family() { return *comms_->family; }

}  // namespace tessera::comm
