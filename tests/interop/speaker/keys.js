// Key names, built from the templates of keys.json, and the cluster slot of a key.
import {parse} from './ids.js';

export class Keys {
  constructor(registry) {
    this.templates = new Map();
    for (const group of ['keys', 'subkeys', 'reserve']) {
      for (const {type, template} of registry[group]) this.templates.set(type, template);
    }
    this.templates.set('base', 'emq:{q}:');
  }

  /** The key of a type. `values`: queue, id, group, name, dedup_id, table, as the template asks. */
  name(type, values) {
    const template = this.templates.get(type);
    if (template === undefined) throw new Error(`keys.json knows no key of type ${type}`);
    const value = (name) => {
      const found = values[name.replace(/ /g, '_')];
      if (found === undefined) throw new Error(`the key ${template} needs ${name}`);
      return String(found);
    };
    return template
      .replace('{q}', () => `{${checkQueue(values.queue)}}`)
      .replace(/<([^>]+)>/g, (_, name) => (name === 'q' ? values.queue : value(name)));
  }
}

export function checkQueue(name) {
  if (typeof name !== 'string' || !/^[A-Za-z0-9._-]{1,128}$/.test(name) || name === 'emq') {
    throw new Error(`no queue name: ${name}`);
  }
  return name;
}

/** Lanes and jobs are named by valid ids; the namespace of a job is the script's affair. */
export function checkId(id) {
  parse(id);
  return id;
}

/** What of a key decides its slot: the text between the first { and the next }, when there is any. */
export function hashTag(key) {
  const open = key.indexOf('{');
  const close = open < 0 ? -1 : key.indexOf('}', open + 1);
  return close > open + 1 ? key.slice(open + 1, close) : key;
}

/** CRC16/XMODEM of the hash tag modulo 16384. */
export function slot(key) {
  let crc = 0;
  for (const byte of Buffer.from(hashTag(key), 'utf8')) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; ++bit) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1;
    crc &= 0xffff;
  }
  return crc % 16384;
}
