// A user's test: it compiles and links with the helpers of echomq::testing.
#include <echomq/testing/private_server.hpp>

int main() {
  const auto server = echomq::testing::PrivateServer::start();
  return server ? 0 : 1;
}
