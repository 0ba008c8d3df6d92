// Some records of a writer on their way: the request that they travel in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bus/writer.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {

class Writer::Batch final : public detail::Call {
 public:
  enum class Form : std::uint8_t {
    run,     ///< several by an XADD each
    plain,   ///< one record by XADD
    script,  ///< several by `stream_append`
    keyed,   ///< several by `stream_publish`
    look,    ///< `stream_append` without records: whether the one record is there, and what the top is
  };

  Batch(std::shared_ptr<Writer> writer, Form form_of);

  void part(const resp::View& reply) noexcept override;
  void accept(const resp::View& reply) noexcept override;
  void fail(Error error) noexcept override;

  /// Encodes the request.
  void encode(std::string_view key);

  /// What a run's commands were refused with, by record. A run that was sent again elsewhere was answered more than once:
  /// the last answers count.
  [[nodiscard]] std::vector<std::pair<std::size_t, Error>> refusals();
  [[nodiscard]] bool none_refused() const noexcept { return refusals_.empty(); }

  const Form form;
  std::vector<WaitingRecord*> records;
  std::optional<EventId> before;  ///< the record that must stand already, for a script
  /// What may stand behind its records already, after a lost answer, in the order of the calls: for a script.
  std::vector<Sent> later;
  bool submitted = false;  ///< guarded by the writer

 private:
  ~Batch() override = default;
  void destroy() noexcept override { delete this; }

  /// Whether a record of these may stand though an earlier one does not.
  [[nodiscard]] bool looks() const;
  void encode_adds(std::string_view key);
  void encode_keyed(std::string_view key);
  void encode_script(std::string_view key);
  void begin(std::size_t words);
  void add(const WaitingRecord& record);

  const std::shared_ptr<Writer> writer_;
  std::string bytes_;
  std::vector<std::pair<std::size_t, Error>> refusals_;
  std::size_t replies_ = 0;
};

}  // namespace bus
}  // namespace v1
}  // namespace echomq
