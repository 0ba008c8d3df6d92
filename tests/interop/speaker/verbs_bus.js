// The bus: streams of records. No scripts: every verb is one plain command on `emq:{q}:stream:<name>`.
import {fromBytes} from './bytes.js';
import {ceilingEntry, entryId, floorEntry, parse} from './ids.js';
import {Raised, idOf} from './shapes.js';

const NOT_ABOVE_TOP = 'ERR The ID specified in XADD is equal or smaller than the target stream top item';
export const keyOf = (runtime, args) => runtime.keys.name('stream', {...args, name: args.stream});
const archiveOf = (runtime, args) => runtime.keys.name('stream:archived', {...args, name: args.stream});

async function append(runtime, args, id) {
  const fields = args.fields.flat();
  try {
    await runtime.send('XADD', keyOf(runtime, args), entryId(id), 'id', id, ...fields);
  } catch (error) {
    if (error.message === NOT_ABOVE_TOP) return {error: 'nonmonotonic'};
    throw error;
  }
  return {ok: id};
}

/** [EVT id, fields]: of a repeated field the first one counts, so nothing shadows the record's id. */
export function record([, list]) {
  const fields = new Map();
  for (let i = 0; i + 1 < list.length; i += 2) {
    const name = list[i].toString();
    if (!fields.has(name)) fields.set(name, fromBytes(list[i + 1]));
  }
  const id = fields.get('id') ?? null;
  fields.delete('id');
  return [id, Object.fromEntries(fields)];
}

async function read(runtime, args, from, to) {
  const count = args.count === undefined ? [] : ['COUNT', args.count];
  const entries = await runtime.send('XRANGE', keyOf(runtime, args), from, to, ...count);
  return {ok: entries.map(record)};
}

/** A fresh id, and where another host has written a newer record a later one. */
async function appendFresh(runtime, args) {
  for (let above = null; ; ) {
    const answer = await append(runtime, args, await runtime.mint('EVT', above));
    if (answer.error !== 'nonmonotonic') return answer;
    const about = await runtime.send('XINFO', 'STREAM', keyOf(runtime, args));
    const top = about[about.findIndex((name) => name.toString() === 'last-generated-id') + 1].toString();
    above = Number(top.split('-')[0]);
  }
}

/** The entry id right after that of a record. */
function entryAfter(id) {
  const [ms, sequence] = entryId(id).split('-');
  return `${ms}-${BigInt(sequence) + 1n}`;
}

/** Trimming answers how many entries went. */
async function trim(runtime, args, by, edge) {
  // Without a limit of 0 an approximate trim stops early, and nobody asks again.
  const how = args.approx ? ['~', edge, 'LIMIT', 0] : ['=', edge];
  return {ok: await runtime.send('XTRIM', keyOf(runtime, args), by, ...how)};
}

export const busVerbs = {
  async stream_append(runtime, args) {
    return appendFresh(runtime, args);
  },
  /** The receipts in order, or the first refusal. */
  async stream_append_batch(runtime, args) {
    const receipts = [];
    for (const fields of args.records) {
      const answer = await appendFresh(runtime, {...args, fields});
      if (!('ok' in answer)) return answer;
      receipts.push(answer.ok);
    }
    return {ok: receipts};
  },
  async stream_append_id(runtime, args) {
    try {
      if (parse(args.id).namespace !== 'EVT') throw new Error('a stream admits one brand: EVT');
    } catch (error) {
      throw new Raised(error.message);
    }
    return append(runtime, args, args.id);
  },
  stream_read: (runtime, args) => read(runtime, args, args.from ?? '-', args.to ?? '+'),
  stream_read_since: (runtime, args) => read(runtime, args, floorEntry(args.t0_ms), '+'),
  async stream_read_window(runtime, args) {
    if (args.t1_ms < args.t0_ms) throw new Raised('the window ends before it begins');
    return read(runtime, args, floorEntry(args.t0_ms), ceilingEntry(args.t1_ms));
  },

  async stream_length(runtime, args) {
    return {ok: await runtime.send('XLEN', keyOf(runtime, args))};
  },

  stream_trim_maxlen: (runtime, args) => trim(runtime, args, 'MAXLEN', args.count),
  stream_trim_minid: (runtime, args) => trim(runtime, args, 'MINID', floorEntry(args.at_ms)),
  /** A record and all that are older. */
  stream_trim_through: (runtime, args) => trim(runtime, args, 'MINID', entryAfter(idOf(args))),

  // The watermark of the archive: the id of the last record that it holds.
  async put_archived(runtime, args) {
    return {ok: (await runtime.send('SET', archiveOf(runtime, args), idOf(args))).toString()};
  },
  async get_archived(runtime, args) {
    const id = await runtime.send('GET', archiveOf(runtime, args));
    return id === null ? 'empty' : {ok: id.toString()};
  },
  async clear_archived(runtime, args) {
    return {ok: await runtime.send('DEL', archiveOf(runtime, args))};
  },
};
