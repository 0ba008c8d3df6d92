// Compares the speaker's own arithmetic with protocol/vectors: node vectors.js [--protocol FOLDER]
//
// Prints every difference and `VECTORS n/m`; the exit code is not 0 when there is one.
import {parseArgs} from 'node:util';
import {toBytes} from './speaker/bytes.js';
import {IdError, decode62, encode62, entryId, format, parse} from './speaker/ids.js';
import {Keys, checkId, checkQueue, hashTag, slot} from './speaker/keys.js';
import {Protocol} from './speaker/protocol.js';
import {parseRecord, writeRecord} from './speaker/verbs_flows.js';

const {values} = parseArgs({options: {protocol: {type: 'string'}}});
const protocol = new Protocol(values.protocol);
let passed = 0;
let checks = 0;

function check(what, actual, expected) {
  ++checks;
  const show = (value) => JSON.stringify(value, (_, item) => (typeof item === 'bigint' ? String(item) : item));
  if (show(actual) === show(expected)) ++passed;
  else console.log(`${what}: ${show(actual)} is not ${show(expected)}`);
}

/** As `hash32_about` of the vectors says; nothing on the wire needs it. */
function hash32(value) {
  const mixed = BigInt.asUintN(64, (value ^ (value >> 33n)) * 0xff51afd7ed558ccdn);
  return Number(BigInt.asUintN(32, mixed ^ (mixed >> 33n)));
}

/** What a call gives, or why an id is refused, or `refused`. */
function outcome(make) {
  try {
    return make();
  } catch (error) {
    return error instanceof IdError ? error.why : 'refused';
  }
}

const ids = protocol.json('vectors/ids.json');
for (const {value, base62, hash32: hash, unix_ms: unixMs, node, seq} of ids.values) {
  check(`encode ${value}`, encode62(BigInt(value)), base62);
  check(`decode ${base62}`, String(decode62(base62)), value);
  check(`hash32 ${value}`, hash32(BigInt(value)), hash);
  const parts = parse(`JOB${base62}`);
  check(`parts of ${base62}`, [parts.unixMs, parts.node, parts.sequence], [unixMs, node, seq]);
}
for (const {id, namespace, value} of ids.decode) {
  check(`parse ${id}`, [parse(id).namespace, String(parse(id).value)], [namespace, value]);
}
for (const {namespace, value, error} of ids.encode_refused) {
  check(`format ${value}`, outcome(() => format(namespace, BigInt(value))), error);
}
for (const {id, error} of ids.decode_refused) check(`parse ${id}`, outcome(() => parse(id)), error);
for (const {id, entry} of ids.stream_entry_ids) check(`entry id of ${id}`, entryId(id), entry);
for (const {id, error} of ids.stream_entry_refused) {
  const why = outcome(() => entryId(id));
  check(`entry id of ${id}`, why === 'kind' ? 'kind' : 'malformed', error);
}

const keys = new Keys(protocol.registry);
const names = protocol.json('vectors/keys.json');
for (const {type, key, ...parts} of names.keys) check(`key ${key}`, keys.name(type || 'base', parts), key);
for (const {suffix, key} of names.reserve) check(`key ${key}`, keys.name(suffix, {}), key);
for (const name of names.queue_names_accepted) check(`queue ${name}`, outcome(() => checkQueue(name)), name);
for (const name of names.queue_names_refused) check(`queue ${name}`, outcome(() => checkQueue(name)), 'refused');
for (const id of names.job_ids_refused) check(`job id ${id}`, outcome(() => checkId(id)) === id, false);

const slots = protocol.json('vectors/slots.json');
for (const {key, hash_tag: tag, slot: number} of slots.keys) check(`slot ${key}`, [hashTag(key), slot(key)], [tag, number]);
for (const group of slots.same_slot) check('same slot', new Set(group.map(slot)).size, 1);

const outbox = protocol.json('vectors/outbox.json');
for (const {hex, kind, parent_queue: queue, parent, child, policy, result, error} of outbox.records) {
  const last = toBytes(result ?? error);
  const record = {kind, queue, parent, child, ...(policy === undefined ? {} : {policy}), last};
  check(`record ${hex}`, writeRecord(record).toString('hex'), hex);
  const read = parseRecord(Buffer.from(hex, 'hex'));
  check(`read ${hex}`, {...read, last: read.last.toString('hex')}, {...record, last: last.toString('hex')});
}
for (const {hex} of outbox.malformed) check(`malformed ${hex}`, parseRecord(Buffer.from(hex, 'hex')), null);

// The registry and the vectors say the same about refusals.
const texts = (list) => list.map(({text}) => text).sort();
check('refusals', texts(protocol.registry.refusals), texts(protocol.json('vectors/refusals.json').refusals));

console.log(`VECTORS ${passed}/${checks}`);
process.exitCode = passed === checks ? 0 : 1;
