// SQLite, as far as the journal needs it: a connection, statements that end with their scope, errors as results.
#pragma once

#include <sqlite3.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "echomq/journal.hpp"

namespace echomq {
inline namespace v1 {
namespace journal {

class Database;

[[nodiscard]] std::unexpected<Error> failed(JournalErrc code, std::string why);

/// One run of a statement. Text that is bound must outlive it.
class Statement {
 public:
  Statement(Statement&& other) noexcept : statement_(std::exchange(other.statement_, nullptr)) {}
  Statement& operator=(Statement&& other) noexcept {
    std::swap(statement_, other.statement_);
    return *this;
  }
  ~Statement() { sqlite3_finalize(statement_); }

  Statement& bind(int at, std::string_view text) {
    sqlite3_bind_text(statement_, at, text.data(), static_cast<int>(text.size()), SQLITE_STATIC);
    return *this;
  }
  Statement& bind(int at, std::int64_t number) {
    sqlite3_bind_int64(statement_, at, number);
    return *this;
  }
  /// Whether there is a row (more).
  [[nodiscard]] Result<bool> step();
  /// To its end; rows are passed over.
  [[nodiscard]] Result<void> run();
  /// For another run with other values.
  void again() { sqlite3_reset(statement_); }
  [[nodiscard]] std::string_view text(int column) const {
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    return bytes == nullptr
               ? std::string_view()
               : std::string_view(bytes, static_cast<std::size_t>(sqlite3_column_bytes(statement_, column)));
  }
  [[nodiscard]] std::int64_t number(int column) const { return sqlite3_column_int64(statement_, column); }

 private:
  friend class Database;
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}
  sqlite3_stmt* statement_;
};

/// Errors of all: `JournalErrc`, with the file and what SQLite says.
class Database {
 public:
  /// Makes the file where there is none.
  [[nodiscard]] static Result<Database> open(const std::string& path, std::chrono::milliseconds busy);
  [[nodiscard]] Result<Statement> prepare(std::string_view sql);
  /// One statement without values.
  [[nodiscard]] Result<void> run(std::string_view sql);
  /// The first column of the first row.
  [[nodiscard]] Result<std::string> text(std::string_view sql);
  [[nodiscard]] Result<std::int64_t> number(std::string_view sql);
  /// Makes a function of texts known to statements: whether `holds` of them. One that is no text is an empty one.
  using Holds = bool (*)(std::string_view a, std::string_view b, std::string_view c);
  [[nodiscard]] Result<void> define(const char* name, Holds holds);
  /// Whether commits wait for the disk from now on. Not in a transaction.
  [[nodiscard]] Result<void> flush(bool each_commit);
  [[nodiscard]] std::int64_t changes() const { return sqlite3_changes64(connection_.get()); }
  [[nodiscard]] std::int64_t last_number() const { return sqlite3_last_insert_rowid(connection_.get()); }

 private:
  struct Close {
    void operator()(sqlite3* connection) const { sqlite3_close(connection); }
  };
  explicit Database(sqlite3* connection) : connection_(connection) {}
  std::unique_ptr<sqlite3, Close> connection_;
  bool flushes_ = true;  // what SQLite does unasked
};

/// Writes together or not at all: without `commit` nothing is kept.
class Transaction {
 public:
  /// Takes the right to write at once, so that it need not be asked for in the middle.
  [[nodiscard]] static Result<Transaction> begin(Database& database);
  Transaction(Transaction&& other) noexcept : database_(std::exchange(other.database_, nullptr)) {}
  Transaction& operator=(Transaction&&) = delete;
  ~Transaction();
  [[nodiscard]] Result<void> commit();

 private:
  explicit Transaction(Database* database) : database_(database) {}
  Database* database_;
};

}  // namespace journal
}  // namespace v1
}  // namespace echomq
