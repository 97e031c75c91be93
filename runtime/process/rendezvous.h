#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "shardwise/runtime/process/process_group.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// The processes of one common task, which agree on each step of it. GroupRendezvous agrees over a
/// ProcessGroup; the Python package has one that agrees over the calls of its key-value stores. For
/// one thread at a time.
class Rendezvous {
 public:
  using Work = std::function<Bytes()>;
  using Merge = std::function<Bytes(std::vector<Bytes>)>;

  virtual ~Rendezvous() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// One step: runs work() on every rank, then merge(all their bytes, by rank) on rank 0. Returns
  /// merge's bytes on every rank. If one of them throws, every rank throws: that rank the same
  /// error, the others an Error that reports it. If `work` is null on all ranks, merge gets no
  /// bytes, and rank 0 waits for nobody.
  virtual Bytes agree(const Work& work, const Merge& merge) const = 0;

  /// Throws the error of another rank if this rank knows of it, or learns of it within `wait`. A
  /// rendezvous that hears of errors only in agree() does nothing.
  virtual void check(std::chrono::milliseconds wait = {}) const = 0;
};

/// A ProcessGroup used for one task only; keeps a copy. An error in a step aborts the group, with a
/// reason that begins with `subject`, if it has one. A group of one calls work and merge, and sends
/// nothing.
class GroupRendezvous final : public Rendezvous {
 public:
  GroupRendezvous(ProcessGroup group, std::string subject)
      : group_(std::move(group)), subject_(std::move(subject)) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  Bytes agree(const Work& work, const Merge& merge) const override;
  void check(std::chrono::milliseconds wait = {}) const override { group_.check(wait); }

 private:
  ProcessGroup group_;
  std::string subject_;
};

}  // namespace shardwise
