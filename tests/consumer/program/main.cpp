// What a user's first file needs to compile, link and run: no server, no package but EchoMQ.
#include <echomq/error.hpp>

#include <cstdio>

int main() {
  const echomq::Error error(echomq::Errc::job_gone, "JOB0NgWEfAEJfs", echomq::Repeat::safe);
  if (error.message() != "no such job: JOB0NgWEfAEJfs") {
    std::puts(error.message().c_str());
    return 1;
  }
  return 0;
}
