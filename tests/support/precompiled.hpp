// What most tests include, compiled once for the trees whose compiler takes longest over it (the sanitizers'). No test may
// count on it: the other trees compile every file by itself.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "echomq/client.hpp"
#include "echomq/queue.hpp"
#include "echomq/worker.hpp"
