// SQLite, as far as the journal needs it.
#include "journal/database.hpp"

#include "result/try.hpp"

namespace echomq {
inline namespace v1 {
namespace {

class Category final : public std::error_category {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "echomq.journal"; }
  [[nodiscard]] std::string message(int value) const override {
    switch (static_cast<JournalErrc>(value)) {
      case JournalErrc::held: return "another process is writing to the journal";
      case JournalErrc::broken: return "the file is no sound journal";
      case JournalErrc::storage_failed: return "storage failed";
      case JournalErrc::other_table: return "the journal is that of another table";
    }
    return "unknown error";
  }
};

}  // namespace

const std::error_category& journal_error_category() noexcept {
  static const Category category;
  return category;
}

namespace journal {
namespace {

[[nodiscard]] JournalErrc kind_of(int code) {
  switch (code & 0xFF) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return JournalErrc::held;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_ERROR:     // a statement that does not fit the tables that are there
    case SQLITE_MISMATCH:  // nor do their columns
    case SQLITE_CONSTRAINT: return JournalErrc::broken;
    default: return JournalErrc::storage_failed;
  }
}

[[nodiscard]] std::unexpected<Error> failure(sqlite3* connection, std::string_view doing) {
  const char* path = sqlite3_db_filename(connection, "main");
  std::string why = path != nullptr ? path : "";
  why += ": ";
  why += sqlite3_errmsg(connection);
  why += " (";
  why += doing;
  why += ")";
  return failed(kind_of(sqlite3_extended_errcode(connection)), std::move(why));
}

[[nodiscard]] std::string_view text_of(sqlite3_value* value) {
  if (sqlite3_value_type(value) != SQLITE_TEXT)
    return {};
  const auto* bytes = reinterpret_cast<const char*>(sqlite3_value_text(value));
  return {bytes, static_cast<std::size_t>(sqlite3_value_bytes(value))};
}

}  // namespace

std::unexpected<Error> failed(JournalErrc code, std::string why) {
  Error error;
  error.code = make_error_code(code);
  error.text = std::move(why);
  return std::unexpected<Error>(std::move(error));
}

Result<bool> Statement::step() {
  switch (sqlite3_step(statement_)) {
    case SQLITE_ROW: return true;
    case SQLITE_DONE: return false;
    default: return failure(sqlite3_db_handle(statement_), sqlite3_sql(statement_));
  }
}

Result<void> Statement::run() {
  for (;;) {
    ECHOMQ_TRY(const bool row, step());
    if (!row)
      return {};
  }
}

Result<Database> Database::open(const std::string& path, std::chrono::milliseconds busy) {
  sqlite3* connection = nullptr;
  const int opened = sqlite3_open_v2(path.c_str(), &connection,
                                     SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, nullptr);
  Database database(connection);  // to be closed also after a failure
  if (opened != SQLITE_OK)
    return failed(kind_of(opened), path + ": " + sqlite3_errmsg(connection));
  sqlite3_busy_timeout(connection, static_cast<int>(busy.count()));
  return database;
}

Result<Statement> Database::prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(connection_.get(), sql.data(), static_cast<int>(sql.size()), &statement, nullptr) != SQLITE_OK)
    return failure(connection_.get(), sql);
  return Statement(statement);
}

Result<void> Database::run(std::string_view sql) {
  ECHOMQ_TRY(Statement statement, prepare(sql));
  return statement.run();
}

Result<std::string> Database::text(std::string_view sql) {
  ECHOMQ_TRY(Statement statement, prepare(sql));
  ECHOMQ_TRY(const bool row, statement.step());
  return std::string(row ? statement.text(0) : std::string_view());
}

Result<std::int64_t> Database::number(std::string_view sql) {
  ECHOMQ_TRY(Statement statement, prepare(sql));
  ECHOMQ_TRY(const bool row, statement.step());
  return row ? statement.number(0) : 0;
}

Result<void> Database::define(const char* name, Holds holds) {
  const auto call = [](sqlite3_context* context, int, sqlite3_value** values) {
    const auto it = reinterpret_cast<Holds>(sqlite3_user_data(context));
    sqlite3_result_int(context, it(text_of(values[0]), text_of(values[1]), text_of(values[2])) ? 1 : 0);
  };
  if (sqlite3_create_function_v2(connection_.get(), name, 3, SQLITE_UTF8 | SQLITE_DETERMINISTIC,
                                 reinterpret_cast<void*>(holds), call, nullptr, nullptr, nullptr) != SQLITE_OK)
    return failure(connection_.get(), name);
  return {};
}

Result<void> Database::flush(bool each_commit) {
  if (flushes_ == each_commit)
    return {};
  ECHOMQ_CHECK(run(each_commit ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL"));
  flushes_ = each_commit;
  return {};
}

Result<Transaction> Transaction::begin(Database& database) {
  ECHOMQ_CHECK(database.run("BEGIN IMMEDIATE"));
  return Transaction(&database);
}

Transaction::~Transaction() {
  if (database_ != nullptr) {
    [[maybe_unused]] const Result<void> gone = database_->run("ROLLBACK");
  }
}

Result<void> Transaction::commit() {
  ECHOMQ_CHECK(database_->run("COMMIT"));
  database_ = nullptr;
  return {};
}

}  // namespace journal
}  // namespace v1
}  // namespace echomq
