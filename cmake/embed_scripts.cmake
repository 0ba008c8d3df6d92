# cmake -DLUA_DIR=... -DLUA_LIST=... -DOUT=... -P embed_scripts.cmake
#
# Writes the table that src/script/registry.hpp declares. A script's name is its file name without `.lua`; names are
# unique over all folders. Texts are cut into raw string literals below 16 kB, always after a line end.
cmake_minimum_required(VERSION 3.25)
set(piece_bytes 15000)

file(READ "${LUA_LIST}" list_text)
string(STRIP "${list_text}" list_text)
string(REPLACE "\n" ";" files "${list_text}")

set(names)
foreach(file IN LISTS files)
  cmake_path(GET file STEM LAST_ONLY name)
  if(name IN_LIST names)
    message(FATAL_ERROR "Two scripts are named ${name}: ${file} and ${path_of_${name}}")
  endif()
  list(APPEND names "${name}")
  set(path_of_${name} "${file}")
endforeach()
list(SORT names)
list(LENGTH names count)

set(rows "")
foreach(name IN LISTS names)
  set(file "${path_of_${name}}")
  cmake_path(RELATIVE_PATH file BASE_DIRECTORY "${LUA_DIR}" OUTPUT_VARIABLE path)
  set(extension false)
  if(path MATCHES "^extension/")
    set(extension true)
  endif()

  file(READ "${file}" text)
  file(SHA1 "${file}" sha1)
  string(SHA1 read_sha1 "${text}")
  if(NOT sha1 STREQUAL read_sha1)
    message(FATAL_ERROR "${file}: only text without NUL bytes and without a byte order mark can be embedded")
  endif()
  string(FIND "${text}" ")lua\"" delimiter)
  string(FIND "${text}" "\r" carriage_return)
  if(NOT delimiter EQUAL -1 OR NOT carriage_return EQUAL -1)
    message(FATAL_ERROR "${file}: neither `)lua\"` nor a carriage return may be in a script")
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
    string(APPEND literals "\n     R\"lua(${piece})lua\"")
    string(LENGTH "${text}" left)
  endwhile()
  if(literals STREQUAL "")
    set(literals "\"\"")
  endif()
  # With its length beside it: a compiler counts only so many bytes in a constant.
  string(APPEND rows "    {\"${name}\", \"${path}\", ${extension},${literals}sv,\n     \"${sha1}\"},\n")
endforeach()

set(table "constexpr std::array<ScriptSource, ${count}> kScripts = {{\n${rows}}};\n")
if(count EQUAL 0)
  set(table "constexpr std::array<ScriptSource, 0> kScripts{};\n")
endif()
file(WRITE "${OUT}" "// Generated from protocol/lua by cmake/embed_scripts.cmake: do not edit.
#include <array>

#include \"script/registry.hpp\"

namespace echomq {
inline namespace v1 {
namespace script {
namespace {

using namespace std::string_view_literals;

${table}
}  // namespace

std::span<const ScriptSource> all_scripts() noexcept { return kScripts; }

}  // namespace script
}  // namespace v1
}  // namespace echomq
")
