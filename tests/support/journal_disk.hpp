// The disk below SQLite, in a test's hands: counts its steps, and at a chosen one ends the process or refuses to write.
#pragma once

#include <signal.h>
#include <sqlite3.h>

#include <array>
#include <atomic>
#include <mutex>

namespace echomq::test {

enum class JournalDiskThen { count, die, refuse };

struct JournalDiskState {
  sqlite3_vfs* real = nullptr;
  sqlite3_vfs ours{};
  /// SQLite's unix files have one table of functions with locks and one without (logs).
  struct Table {
    sqlite3_io_methods ours{};  // first, so that a file's pointer to it is one to this
    const sqlite3_io_methods* below = nullptr;
  };
  std::array<Table, 4> tables{};
  std::mutex mutex;
  std::atomic<JournalDiskThen> then{JournalDiskThen::count};
  std::atomic<long> at{0}, steps{0}, syncs{0};
};

/// Of all of SQLite in this process, from `install` on.
class JournalDisk {
 public:
  using Then = JournalDiskThen;

  static void install() {
    if (state_.real != nullptr)
      return;
    state_.real = sqlite3_vfs_find(nullptr);
    state_.ours = *state_.real;
    state_.ours.zName = "echomq_test_disk";
    state_.ours.xOpen = open;
    state_.ours.xDelete = remove;
    sqlite3_vfs_register(&state_.ours, 1);
  }
  /// Counts from 0; at step `at`, and refusing after it too, `then` happens. Only the last step is half done by one that dies.
  static void arm(Then then, long at) {
    state_.then = then;
    state_.at = at;
    state_.steps = 0;
    state_.syncs = 0;
  }
  [[nodiscard]] static long steps() { return state_.steps; }
  [[nodiscard]] static long syncs() { return state_.syncs; }

 private:
  static inline JournalDiskState state_;

  /// Whether this step is one to refuse.
  static bool step() {
    const long now = ++state_.steps;
    const Then then = state_.then;
    if (then == Then::die && now == state_.at)
      ::raise(SIGKILL);
    return then == Then::refuse && now >= state_.at;
  }
  static int open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out) {
    const int code = state_.real->xOpen(state_.real, name, file, flags, out);
    if (file->pMethods == nullptr)
      return code;
    const std::lock_guard guard(state_.mutex);
    for (JournalDiskState::Table& table : state_.tables) {
      if (table.below == nullptr) {
        table.ours = *file->pMethods;
        table.ours.xWrite = write;
        table.ours.xTruncate = truncate;
        table.ours.xSync = sync;
        if (table.ours.xShmMap != nullptr) {
          table.ours.xShmMap = map;
          table.ours.xShmLock = lock;
          table.ours.xShmBarrier = barrier;
        }
        table.below = file->pMethods;
      }
      if (file->pMethods == table.below) {
        file->pMethods = &table.ours;
        break;
      }
    }
    return code;
  }
  static const sqlite3_io_methods* below(const sqlite3_file* file) {
    return reinterpret_cast<const JournalDiskState::Table*>(file->pMethods)->below;
  }
  static int remove(sqlite3_vfs*, const char* name, int sync_folder) {
    return step() ? SQLITE_IOERR_DELETE : state_.real->xDelete(state_.real, name, sync_folder);
  }
  static int write(sqlite3_file* file, const void* bytes, int size, sqlite3_int64 at) {
    if (state_.then == Then::die && state_.steps + 1 == state_.at)
      (void)below(file)->xWrite(file, bytes, size / 2, at);
    return step() ? SQLITE_FULL : below(file)->xWrite(file, bytes, size, at);
  }
  static int truncate(sqlite3_file* file, sqlite3_int64 size) {
    return step() ? SQLITE_IOERR_TRUNCATE : below(file)->xTruncate(file, size);
  }
  static int sync(sqlite3_file* file, int flags) {
    ++state_.syncs;
    return step() ? SQLITE_IOERR_FSYNC : below(file)->xSync(file, flags);
  }
  static int map(sqlite3_file* file, int page, int size, int extend, void volatile** out) {
    return step() ? SQLITE_IOERR_SHMSIZE : below(file)->xShmMap(file, page, size, extend, out);
  }
  // Locks and barriers take no room: steps to die at, not to be refused.
  static int lock(sqlite3_file* file, int offset, int count, int flags) {
    (void)step();
    return below(file)->xShmLock(file, offset, count, flags);
  }
  static void barrier(sqlite3_file* file) {
    (void)step();
    below(file)->xShmBarrier(file);
  }
};

}  // namespace echomq::test
