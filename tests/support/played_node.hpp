// A node of a cluster as a test plays it: a listener that answers the client's boot and its questions for the map by itself, and
// everything else as the test says. So a test has in its hands what a real cluster does at its own time: what is answered, when,
// and in which order nodes die.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace echomq::test {

class PlayedNode {
 public:
  using Words = std::vector<std::string>;
  /// The bytes of a reply; nothing: it is not answered. On the node's thread.
  using Play = std::function<std::optional<std::string>(const Words&)>;
  /// A reply to CLUSTER SLOTS.
  using Map = std::function<std::string()>;

  PlayedNode();
  PlayedNode(const PlayedNode&) = delete;
  PlayedNode& operator=(const PlayedNode&) = delete;
  ~PlayedNode();

  /// It takes some 10 MB a second in. Before it begins.
  void read_slowly();
  /// From here on clients are served. Once.
  void begin(Play play, Map map);
  [[nodiscard]] std::uint16_t port() const noexcept;
  /// As MOVED and ASK have it.
  [[nodiscard]] std::string address() const;

  /// What it was asked that `play` was asked for, in order, the words of each with blanks between.
  [[nodiscard]] std::vector<std::string> asked() const;
  [[nodiscard]] bool was_asked(std::string_view line, std::chrono::milliseconds within) const;
  [[nodiscard]] std::size_t maps_read() const;

  /// Replies are kept back from now on, to the map's readers too; `release` sends them.
  void hold();
  void release();
  /// Its connections end; new ones are served.
  void drop();
  /// Its connections end, and nobody gets a new one.
  void die();
  /// Nothing is played from here on.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

[[nodiscard]] std::string bulk(std::string_view text);

}  // namespace echomq::test
