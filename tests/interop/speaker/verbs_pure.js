// Calls that need no server: ids, keys, slots, back-off.
import {toBytes} from './bytes.js';
import {ceilingEntry, decode62, encode62, entryId, floorEntry, format, parse} from './ids.js';
import {hashTag, slot} from './keys.js';

/** Numbers above 2^53 are written as text. */
const number = (value) => (value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : String(value));
const orError = (make) => {
  try {
    return {ok: make()};
  } catch {
    return 'error';
  }
};

export const pureVerbs = {
  backoff_fixed: (_, args) => args.ms,
  /** base, 2 base, 4 base... up to the cap. */
  backoff_exponential: (_, args) => Math.min(args.cap, args.base * 2 ** (args.attempts - 1)),
  base62_encode: (_, args) => encode62(BigInt(args.value)),
  base62_decode: (_, args) => orError(() => number(decode62(args.payload))),
  id_encode: (_, args) => orError(() => format(args.namespace, BigInt(args.value))),
  id_parse: (_, args) =>
    orError(() => {
      const {namespace, value} = parse(args.id);
      return [namespace, number(value)];
    }),
  unix_ms: (_, args) => orError(() => parse(args.id).unixMs),
  stream_entry_id: (_, args) => {
    try {
      return {ok: entryId(args.id)};
    } catch (error) {
      return {error: error.why === 'kind' ? 'kind' : 'malformed'};
    }
  },
  entry_bounds: (_, args) => [floorEntry(args.at_ms), ceilingEntry(args.at_ms)],
  /** Whether each is, by its bytes, above the one before. */
  sorted: (_, args) =>
    args.ids.every((id, i) => i === 0 || Buffer.compare(toBytes(args.ids[i - 1]), toBytes(id)) < 0),
  slot: (_, args) => slot(args.key),
  hashtag: (_, args) => hashTag(args.key),
};
