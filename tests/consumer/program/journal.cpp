// A user's writer with a journal: it compiles and links with echomq::journal, and needs no header of SQLite for it.
#include <echomq/client.hpp>
#include <echomq/journal.hpp>

#include <cstdio>

int main() {
  const auto client = echomq::Client::open("valkey://127.0.0.1:6379");
  if (!client)
    return 1;
  auto journal = echomq::CacheJournal::open(
      *client, {.folder = ".", .group = echomq::LaneId{"PRT0NgWEfAE00X"}, .table = echomq::CacheName{"users"}});
  if (!journal) {
    std::puts(journal.error().code == echomq::JournalErrc::broken ? "broken" : journal.error().message().c_str());
    return 1;
  }
  return journal->replay() ? 0 : 1;
}
