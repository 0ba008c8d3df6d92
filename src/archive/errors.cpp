// The category of `ArchiveErrc`.
#include "archive/errors.hpp"

namespace echomq {
inline namespace v1 {
namespace {

class Category final : public std::error_category {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "echomq.archive"; }
  [[nodiscard]] std::string message(int value) const override {
    switch (static_cast<ArchiveErrc>(value)) {
      case ArchiveErrc::held: return "another archiver is at work";
      case ArchiveErrc::broken: return "the archive is broken";
      case ArchiveErrc::storage_failed: return "storage failed";
    }
    return "unknown error";
  }
};

}  // namespace

const std::error_category& archive_error_category() noexcept {
  static const Category category;
  return category;
}

}  // namespace v1
}  // namespace echomq
