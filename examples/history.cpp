// History: old records leave the stream for files, and are read together with those that are still there.
//
//   history [URL [FOLDER]]      default valkey://127.0.0.1:6379, a temporary folder
#include <array>
#include <cstdio>
#include <filesystem>
#include <string>

#include "echomq/archive.hpp"
#include "echomq/archiver.hpp"
#include "echomq/client.hpp"
#include "echomq/stream.hpp"

using namespace echomq;

namespace {

int complain(const Error& error) {
  std::fprintf(stderr, "%s\n", error.message().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  auto client = Client::open(argc > 1 ? argv[1] : "valkey://127.0.0.1:6379");
  if (!client)
    return complain(client.error());
  const Stream orders = client->stream(QueueName{"shop"}, StreamName{"history"});
  const std::string folder = argc > 2 ? argv[2] : (std::filesystem::temp_directory_path() / "echomq-history").string();
  auto store = LocalSegments::open(folder);
  if (!store)
    return complain(store.error());

  for (int i = 1; i <= 20; ++i) {
    const std::string amount = std::to_string(10 * i);
    const std::array<Field, 2> fields = {Field{"type", "paid"}, Field{"amount", amount}};
    if (const auto id = orders.append(fields).get(); !id)
      return complain(id.error());
  }

  // In a program: `archiver.start()`, and it folds each second. The newest five records stay on the stream as well.
  ArchiverOptions options;
  options.retention.emplace();
  options.retention->keep.count = 5;
  options.retention->how = Trim::exact;
  auto archiver = Archiver::make(orders, *store, std::move(options));
  if (!archiver)
    return complain(archiver.error());
  const auto done = archiver->fold();
  if (!done)
    return complain(done.error());
  std::printf("%llu folded, %llu trimmed\n", static_cast<unsigned long long>(done->folded),
              static_cast<unsigned long long>(done->trimmed));

  auto history = HistoryReader::open(orders, *store, {.direction = Direction::newest_first});
  if (!history)
    return complain(history.error());
  for (;;) {
    const auto record = history->next();
    if (!record)
      return complain(record.error());
    if (!*record)
      break;
    std::printf("%s amount %s\n", (*record)->entry.c_str(), (*record)->find("amount")->c_str());
  }
  std::printf("the files: zstdcat %s/*.jsonl.zst\n", folder.c_str());
  return 0;
}
