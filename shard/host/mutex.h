#pragma once

// shard/ itself has no threads and does not use this. It is here for storage/ and runtime/, as the
// lowest component that they share.

#include <condition_variable>
#include <mutex>

// clang's -Wthread-safety checks these when clang-tidy reads the sources (scripts/check.sh); g++
// ignores them.
#if defined(__clang__)
#define SHARDWISE_ATTRIBUTE(x) __attribute__((x))
#else
#define SHARDWISE_ATTRIBUTE(x)
#endif
#define SHARDWISE_CAPABILITY(x) SHARDWISE_ATTRIBUTE(capability(x))
#define SHARDWISE_SCOPED_CAPABILITY SHARDWISE_ATTRIBUTE(scoped_lockable)
#define SHARDWISE_GUARDED_BY(x) SHARDWISE_ATTRIBUTE(guarded_by(x))
#define SHARDWISE_REQUIRES(...) SHARDWISE_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define SHARDWISE_ACQUIRE(...) SHARDWISE_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define SHARDWISE_RELEASE(...) SHARDWISE_ATTRIBUTE(release_capability(__VA_ARGS__))
#define SHARDWISE_TRY_ACQUIRE(...) SHARDWISE_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))

namespace shardwise {

/// std::mutex with the attributes that let clang check who holds it. Thread-safe.
class SHARDWISE_CAPABILITY("mutex") Mutex {
 public:
  void lock() SHARDWISE_ACQUIRE() { mutex_.lock(); }
  void unlock() SHARDWISE_RELEASE() { mutex_.unlock(); }
  bool try_lock() SHARDWISE_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

/// Holds a Mutex for a scope.
class SHARDWISE_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) SHARDWISE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() SHARDWISE_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// Waits on a Mutex held by the caller. Thread-safe.
using CondVar = std::condition_variable_any;

}  // namespace shardwise
