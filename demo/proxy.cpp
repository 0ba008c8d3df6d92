// The demo writes down what the server says with the proxy of the fault tests; this compiles it into the demo.
#include "../tests/support/proxy.cpp"
#include "../tests/support/proxy_address.cpp"
#include "../tests/support/proxy_connection.cpp"
