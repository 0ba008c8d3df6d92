// Branded ids: three letters, then an unsigned 63-bit number as 11 base62 digits. The number is
// `ms since 2024-01-01 << 22 | node << 12 | sequence`.

const DIGITS = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
const EPOCH_MS = Date.UTC(2024, 0, 1);
const LAST = (1n << 63n) - 1n;

/** Why a text is no id: `length`, `namespace`, `charset` or `range`. */
export class IdError extends Error {
  constructor(why) {
    super(`no branded id: ${why}`);
    this.why = why;
  }
}

export function encode62(value) {
  if (value < 0n || value > LAST) throw new IdError('range');
  let digits = '';
  for (let rest = value; digits.length < 11; rest /= 62n) digits = DIGITS[Number(rest % 62n)] + digits;
  return digits;
}

export function decode62(digits) {
  if (digits.length !== 11) throw new IdError('length');
  let value = 0n;
  for (const digit of digits) {
    const at = DIGITS.indexOf(digit);
    if (at < 0) throw new IdError('charset');
    value = value * 62n + BigInt(at);
  }
  if (value > LAST) throw new IdError('range');
  return value;
}

export function format(namespace, value) {
  if (!/^[A-Z]{3}$/.test(namespace)) throw new IdError('namespace');
  return namespace + encode62(value);
}

/** {namespace, value, unixMs, node, sequence}. The errors are tested in the order of the vectors. */
export function parse(id) {
  if (typeof id !== 'string' || id.length !== 14) throw new IdError('length');
  const namespace = id.slice(0, 3);
  if (!/^[A-Z]{3}$/.test(namespace)) throw new IdError('namespace');
  const value = decode62(id.slice(3));
  return {
    namespace,
    value,
    unixMs: Number(value >> 22n) + EPOCH_MS,
    node: Number((value >> 12n) & 1023n),
    sequence: Number(value & 4095n),
  };
}

/** The least value of a millisecond. */
export const floorOf = (unixMs) => BigInt(unixMs - EPOCH_MS) << 22n;

/** The entry id of a stream record: Unix ms and the low 22 bits. */
export function entryId(id) {
  const {namespace, value, unixMs} = parse(id);
  if (namespace !== 'EVT') throw new IdError('kind');
  return `${unixMs}-${value & 0x3fffffn}`;
}

/** The first and the last entry id of a millisecond. */
export const floorEntry = (unixMs) => `${unixMs}-0`;
export const ceilingEntry = (unixMs) => `${unixMs}-${2 ** 22 - 1}`;

/** Ids of one node that rise from mint to mint, also when the clock stands still or steps back. */
export class Minter {
  constructor(node) {
    this.node = BigInt(node);
    this.last = -1n;
    this.sequence = 0n;
  }

  /** From now on above all ids of that millisecond. */
  rise(unixMs) {
    const ms = BigInt(unixMs - EPOCH_MS);
    if (ms < this.last) return;
    this.last = ms;
    this.sequence = 4095n;
  }

  mint(namespace) {
    const now = BigInt(Date.now() - EPOCH_MS);
    if (now > this.last) {
      this.last = now;
      this.sequence = 0n;
    } else if (++this.sequence > 4095n) {
      this.last += 1n;
      this.sequence = 0n;
    }
    return format(namespace, (this.last << 22n) | (this.node << 12n) | this.sequence);
  }
}
