// What is asked of a retention policy before it is sent or kept.
#pragma once

#include "echomq/retention.hpp"

namespace echomq {
inline namespace v1 {
namespace bus {

/// Errors: invalid_argument, naming the member.
[[nodiscard]] Result<void> check_policy(const RetentionPolicy& policy);

}  // namespace bus
}  // namespace v1
}  // namespace echomq
