// One table.
#include "law/commands.hpp"

#include <algorithm>
#include <array>

namespace echomq::law {
namespace {

constexpr auto kCommands = std::to_array<Command>({
    // Reads.
    {"GET"},
    {"GETRANGE"},
    {"MGET", 1, -1},
    {"STRLEN", 1, 1, false, true},
    {"EXISTS", 1, -1, false, true},
    {"TYPE"},
    {"TTL", 1, 1, false, true},
    {"PTTL", 1, 1, false, true},
    {"HGET", 1, 1, false, false, 2},
    {"HMGET", 1, 1, false, false, 2, 1},
    {"HGETALL"},
    {"HKEYS"},
    {"HVALS"},
    {"HLEN", 1, 1, false, true},
    {"HEXISTS", 1, 1, false, true, 2},
    {"HSTRLEN", 1, 1, false, true, 2},
    {"HRANDFIELD"},
    {"HSCAN"},
    {"LLEN", 1, 1, false, true},
    {"LRANGE"},
    {"LINDEX"},
    {"LPOS", 1, 1, false, true},
    {"SISMEMBER", 1, 1, false, true},
    {"SMISMEMBER"},
    {"SCARD", 1, 1, false, true},
    {"SMEMBERS"},
    {"SRANDMEMBER"},
    {"SSCAN"},
    {"ZSCORE"},
    {"ZMSCORE"},
    {"ZRANK", 1, 1, false, true},
    {"ZREVRANK", 1, 1, false, true},
    {"ZRANGE"},
    {"ZREVRANGE"},
    {"ZRANGEBYSCORE"},
    {"ZREVRANGEBYSCORE"},
    {"ZRANGEBYLEX"},
    {"ZRANDMEMBER"},
    {"ZCARD", 1, 1, false, true},
    {"ZCOUNT", 1, 1, false, true},
    {"ZLEXCOUNT", 1, 1, false, true},
    {"XRANGE"},
    {"XREVRANGE"},
    {"XLEN", 1, 1, false, true},
    {"XINFO", 2, 2},
    {"XPENDING"},
    {"TIME", 0, 0},
    // Writes.
    {"SET", 1, 1, true},
    {"SETNX", 1, 1, true, true},
    {"GETDEL", 1, 1, true},
    {"INCR", 1, 1, true, true},
    {"INCRBY", 1, 1, true, true},
    {"DECR", 1, 1, true, true},
    {"DECRBY", 1, 1, true, true},
    {"APPEND", 1, 1, true, true},
    {"DEL", 1, -1, true, true},
    {"UNLINK", 1, -1, true, true},
    {"EXPIRE", 1, 1, true, true},
    {"PEXPIRE", 1, 1, true, true},
    {"PEXPIREAT", 1, 1, true, true},
    {"PERSIST", 1, 1, true, true},
    {"HSET", 1, 1, true, true, 2, 2},
    {"HSETNX", 1, 1, true, true, 2},
    {"HDEL", 1, 1, true, true, 2, 1},
    {"HINCRBY", 1, 1, true, true, 2},
    {"HPEXPIRE", 1, 1, true},
    {"HPERSIST", 1, 1, true},
    {"LPUSH", 1, 1, true, true},
    {"RPUSH", 1, 1, true, true},
    {"LPUSHX", 1, 1, true, true},
    {"RPUSHX", 1, 1, true, true},
    {"LPOP", 1, 1, true},
    {"RPOP", 1, 1, true},
    {"LREM", 1, 1, true, true},
    {"LTRIM", 1, 1, true},
    {"LSET", 1, 1, true},
    {"LMOVE", 1, 2, true},
    {"RPOPLPUSH", 1, 2, true},
    {"RENAME", 1, 2, true},
    {"SADD", 1, 1, true, true},
    {"SREM", 1, 1, true, true},
    {"SPOP", 1, 1, true},
    {"ZADD", 1, 1, true, true},
    {"ZREM", 1, 1, true, true},
    {"ZINCRBY", 1, 1, true},
    {"ZPOPMIN", 1, 1, true},
    {"ZPOPMAX", 1, 1, true},
    {"ZREMRANGEBYRANK", 1, 1, true, true},
    {"ZREMRANGEBYSCORE", 1, 1, true, true},
    {"ZREMRANGEBYLEX", 1, 1, true, true},
    {"XADD", 1, 1, true},
    {"XTRIM", 1, 1, true, true},
    {"XDEL", 1, 1, true, true},
    {"XGROUP", 2, 2, true, true},
    // A channel is named like a key and lives in the same slot.
    {"PUBLISH", 1, 1, true, true},
    {"SPUBLISH", 1, 1, true, true},
});

}  // namespace

const Command* find_command(std::string_view name) noexcept {
  const auto found = std::find_if(kCommands.begin(), kCommands.end(), [&](const Command& c) { return c.name == name; });
  return found == kCommands.end() ? nullptr : &*found;
}

}  // namespace echomq::law
