// Bytes from L2, the channel and the tracking connection: read without a fault, and what is accepted is written the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "cache/frame.hpp"
#include "cache/push.hpp"
#include "resp/scanner.hpp"

namespace {

using namespace echomq;
using namespace echomq::cache;

void require(bool condition) {
  if (!condition)
    std::abort();
}

class Ears final : public CoherenceSink {
 public:
  void armed() noexcept override { std::abort(); }
  void lost() noexcept override { std::abort(); }
  void heard(const CoherenceMessage& message) noexcept override {
    require(CoherenceMessage::parse(message.text()).has_value());
    ++told;
  }
  void changed(const BrandedId& id) noexcept override {
    require(BrandedId::parse(id.text()).has_value());
    ++told;
  }
  void all_changed() noexcept override { ++told; }
  void ignored() noexcept override { ++told; }
  std::size_t told = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  if (const auto frame = read_frame(bytes)) {
    require(make_frame(frame->version, frame->value) == bytes);
    const BrandedId next = just_newer(frame->version);
    require(next == frame->version || is_newer(next, frame->version));
  } else {
    std::uint64_t ignored = 0;
    require(echomq::detail::check_id(std::string_view(bytes).substr(0, 14), ignored) != echomq::detail::IdFault::none);
  }
  if (const auto message = CoherenceMessage::parse(bytes)) {
    require(message->text() == bytes);
    require(!(is_newer(message->id, message->version) && is_newer(message->version, message->id)));
  }
  if (const auto name = CacheName::parse(bytes))
    require(coherence_queue(*name).text().size() == name->text().size() + 8);

  resp::Scanner scanner;
  std::size_t at = 0;
  while (at < bytes.size() && scanner.scan(bytes.data() + at, bytes.size() - at) == resp::Step::frame) {
    Ears ears;
    read_push(resp::View(std::string_view(bytes).substr(at, scanner.frame_size())), "ecc:{t}:", "ecc:{t}:coh", ears);
    require(ears.told <= scanner.frame_size());
    at += scanner.frame_size();
  }
  return 0;
}
