// Bytes as JSON: printable ASCII is a text, anything else is {"hex": "..."}; {"repeat": [text, n]} is n times the text.

/** The bytes of a JSON value: a text, {"hex": ...}, {"repeat": ...}, or a number in decimal. */
export function toBytes(value) {
  if (Buffer.isBuffer(value)) return value;
  if (isHex(value)) return Buffer.from(value.hex, 'hex');
  if (isRepeat(value)) return Buffer.from(value.repeat[0].repeat(value.repeat[1]));
  if (typeof value === 'string') return Buffer.from(value, 'utf8');
  if (typeof value === 'number' || typeof value === 'bigint') return Buffer.from(String(value));
  return Buffer.from(JSON.stringify(value));
}

export function fromBytes(bytes) {
  const printable = bytes.every((byte) => byte >= 0x20 && byte < 0x7f);
  return printable ? bytes.toString('latin1') : {hex: bytes.toString('hex')};
}

export function isHex(value) {
  return isObject(value) && Object.keys(value).length === 1 && typeof value.hex === 'string';
}

export function isRepeat(value) {
  return isObject(value) && Object.keys(value).length === 1 && Array.isArray(value.repeat);
}

export function isObject(value) {
  return value !== null && typeof value === 'object' && !Array.isArray(value) && !Buffer.isBuffer(value);
}

/** A server's reply as JSON. */
export function toJson(reply) {
  if (Buffer.isBuffer(reply)) return fromBytes(reply);
  if (Array.isArray(reply)) return reply.map(toJson);
  if (reply instanceof Error) return {error: reply.message};
  return reply === undefined ? null : reply;
}
