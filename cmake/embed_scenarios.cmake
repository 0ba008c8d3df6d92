# cmake -DDIR=... -DLIST=... -DOUT=... -P embed_scenarios.cmake
#
# Writes the table that tools/conformance/scenario.hpp declares: each scenario's path below protocol/conformance, and its
# text. Texts are cut into raw string literals below 16 kB, always after a line end.
cmake_minimum_required(VERSION 3.25)
set(piece_bytes 15000)

file(READ "${LIST}" list_text)
string(STRIP "${list_text}" list_text)
string(REPLACE "\n" ";" files "${list_text}")

set(count 0)
set(rows "")
foreach(file IN LISTS files)
  cmake_path(RELATIVE_PATH file BASE_DIRECTORY "${DIR}" OUTPUT_VARIABLE path)
  # Brackets and semicolons are special to CMake's lists; the text never becomes one.
  file(READ "${file}" text)
  string(FIND "${text}" ")json\"" delimiter)
  if(NOT delimiter EQUAL -1)
    message(FATAL_ERROR "${file}: `)json\"` cannot be embedded")
  endif()
  set(literals "")
  string(LENGTH "${text}" left)
  while(left GREATER 0)
    set(take ${left})
    if(left GREATER piece_bytes)
      string(SUBSTRING "${text}" 0 ${piece_bytes} window)
      string(FIND "${window}" "\n" line_end REVERSE)
      if(line_end EQUAL -1)
        message(FATAL_ERROR "${file}: a line of more than ${piece_bytes} bytes")
      endif()
      math(EXPR take "${line_end} + 1")
    endif()
    string(SUBSTRING "${text}" 0 ${take} piece)
    string(SUBSTRING "${text}" ${take} -1 text)
    string(APPEND literals "\n     R\"json(${piece})json\"")
    string(LENGTH "${text}" left)
  endwhile()
  string(APPEND rows "    {\"${path}\",${literals}},\n")
  math(EXPR count "${count} + 1")
endforeach()

file(WRITE "${OUT}" "// Generated from protocol/conformance by cmake/embed_scenarios.cmake: do not edit.
#include <array>

#include \"conformance/scenario.hpp\"

namespace echomq::conformance {
namespace {

constexpr std::array<ScenarioSource, ${count}> kScenarios = {{\n${rows}}};

}  // namespace

std::span<const ScenarioSource> embedded_scenarios() noexcept { return kScenarios; }

}  // namespace echomq::conformance
")
