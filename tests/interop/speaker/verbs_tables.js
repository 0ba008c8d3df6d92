// Cache tables: rows in memory before the server's rows before a loader; messages or pushes drop what is old.
import {setTimeout as sleep} from 'node:timers/promises';
import {fromBytes, toBytes} from './bytes.js';
import {parse} from './ids.js';
import {Scripts} from './scripts.js';
import {idOf} from './shapes.js';
import {newer} from './verbs_cache.js';

const VERSION_BYTES = 14;

/** {version, value}; null for what is no frame. */
function frameOf(bytes) {
  if (bytes === null || bytes.length < VERSION_BYTES) return null;
  const version = bytes.toString('latin1', 0, VERSION_BYTES);
  try {
    parse(version);
  } catch {
    return null;
  }
  return {version, value: bytes.subarray(VERSION_BYTES)};
}

/** What a loader says instead of a value. */
class Refused extends Error {}

class Table {
  static async open(runtime, args) {
    const table = new Table();
    table.runtime = runtime;
    table.name = args.table ?? args.name;
    table.kind = args.kind;
    table.ttl = args.ttl_ms ?? 60_000;
    table.loader = args.loader ?? {};
    table.loaderTakes = args.loader_takes_ms ?? 0;
    table.rows = new Map();
    table.flights = new Map();
    table.connection = runtime.connection;
    if (args.coherence === 'broadcast') await table.listen();
    if (args.coherence === 'tracking') await table.track();
    table.scripts = new Scripts(runtime.protocol, table.connection);
    return table;
  }

  /** Messages `<id>:<version>` of all who change rows. */
  async listen() {
    this.pushes = await this.runtime.subscriber(() => this.forget());
    this.pushes.take = (message) => {
      const [id, version] = message.toString('latin1').split(':');
      this.apply(id, version);
    };
    await this.pushes.subscribe(`ecc:{${this.name}}:coh`);
  }

  /** The server tells of every change of a row but those over this connection, over which the table itself writes. */
  async track() {
    this.connection = this.pushes = await this.runtime.pushConnection();
    const prefix = this.key('');
    this.pushes.onLost = () => this.forget();
    this.pushes.onInvalidate = (keys) => {
      if (keys === null) this.forget();
      else for (const key of keys) this.drop(key.toString().slice(prefix.length));
    };
    await this.pushes.send('CLIENT', 'TRACKING', 'ON', 'BCAST', 'PREFIX', prefix, 'NOLOOP');
  }

  key(id) {
    return this.runtime.keys.name('cache', {table: this.name, id});
  }

  /** A row that is in memory and has not run out. */
  held(id) {
    const row = this.rows.get(id);
    if (row !== undefined && Date.now() < row.until) return row;
    this.rows.delete(id);
    return null;
  }

  /** Holds a row unless a newer one is held. */
  hold(id, frame, ttl) {
    const row = this.held(id);
    if (row === null || !newer(row.version, frame.version)) this.rows.set(id, {...frame, until: Date.now() + ttl});
  }

  /** A version that was heard of: older rows go, and what is under way must not bring one. */
  apply(id, version) {
    const flight = this.flights.get(id);
    if (flight && (flight.floor === null || newer(version, flight.floor))) flight.floor = version;
    const row = this.held(id);
    if (row === null || !newer(version, row.version)) return 'stale';
    this.rows.delete(id);
    return 'applied';
  }

  drop(id) {
    this.rows.delete(id);
    const flight = this.flights.get(id);
    if (flight) flight.spoilt = true;
  }

  forget() {
    this.rows.clear();
    for (const flight of this.flights.values()) flight.spoilt = true;
  }

  /** [value, where it is from], or null. Who asks while another one fetches gets what that one gets. */
  async fetch(id) {
    const row = this.held(id);
    if (row !== null) return [row.value, 'hit'];
    let flight = this.flights.get(id);
    if (flight === undefined) {
      flight = {floor: null, spoilt: false};
      this.flights.set(id, flight);
      flight.result = this.find(id, flight).finally(() => this.flights.delete(id));
    }
    return flight.result;
  }

  async find(id, flight) {
    const [bytes, left] = await Promise.all([
      this.connection.send('GET', this.key(id)),
      this.connection.send('PTTL', this.key(id)),
    ]);
    const keep = (frame, ttl) => {
      const old = flight.floor !== null && newer(flight.floor, frame.version);
      if (!flight.spoilt && !old) this.hold(id, frame, ttl);
      return frame.value;
    };
    const found = frameOf(bytes);
    // A row never outlives in memory what is left of it on the server.
    if (found !== null) return [keep(found, left >= 0 ? Math.min(left, this.ttl) : this.ttl), 'l2'];
    const loaded = await this.load(id);
    return loaded === null ? null : [keep(await this.fill(id, loaded), this.ttl), 'fill'];
  }

  async load(id) {
    if (this.loaderTakes > 0) await sleep(this.loaderTakes);
    const known = this.loader[id];
    if (known === undefined) return null;
    const [value, version] = Array.isArray(known) ? known : [known];
    if (value === 'error') throw new Refused(version);
    return {value: toBytes(value), version: version ?? (await this.runtime.mint('VER'))};
  }

  /** Writes where there is nothing; the row that stands there otherwise, unless it is older or none. */
  async fill(id, loaded) {
    const frame = Buffer.concat([Buffer.from(loaded.version), loaded.value]);
    const there = await this.connection.send('SET', this.key(id), frame, 'NX', 'GET', 'PX', this.ttl);
    if (there === null) return loaded;
    return (await this.write(id, loaded)) ?? loaded;
  }

  /** Null when the row was written, else the newer one that stays. */
  async write(id, {version, value}) {
    const reply = await this.scripts.run('cache_put', {table: this.name, id, version, value, ttl_ms: this.ttl});
    return Buffer.isBuffer(reply) ? frameOf(reply) : null;
  }

  async put(id, value, version) {
    const frame = {version, value: toBytes(value)};
    const stands = await this.write(id, frame);
    this.hold(id, stands ?? frame, this.ttl);
    return stands === null ? 'ok' : 'superseded';
  }

  async invalidate(id) {
    this.drop(id);
    await this.connection.send('DEL', this.key(id));
    this.drop(id);
    return 'ok';
  }

  close() {
    this.pushes?.close();
  }
}

/** Makes a call on the table and the id of the arguments. */
const onTable = (use) => async (runtime, args) => {
  const table = runtime.tables.get(args.name);
  if (table === undefined) return {error: 'no_such_cache'};
  try {
    if (parse(args.id).namespace !== table.kind) return {error: 'kind'};
  } catch {
    return {error: 'kind'};
  }
  return use(table, args, runtime);
};

async function fetched(table, {id}) {
  try {
    const found = await table.fetch(id);
    return found === null ? {error: 'absent'} : {ok: [fromBytes(found[0]), found[1]]};
  } catch (error) {
    if (error instanceof Refused) return {error: error.message};
    throw error;
  }
}

export const tableVerbs = {
  async table_start(runtime, args) {
    runtime.tables.get(args.name)?.close();
    runtime.tables.set(args.name, await Table.open(runtime, args));
    return 'ok';
  },
  fetch: onTable(fetched),
  fetch_together: onTable((table, args) =>
    Promise.all(Array.from({length: args.callers}, () => fetched(table, args))),
  ),
  put: onTable(async (table, args, runtime) => {
    const version = args.version === undefined ? await runtime.mint('VER') : idOf(args, 'version');
    return table.put(args.id, args.value, version);
  }),
  invalidate: onTable((table, args) => table.invalidate(args.id)),
  apply_coherence: onTable(async (table, args) => ({ok: table.apply(args.id, idOf(args, 'version'))})),
  /** For writers without a table: the row goes when it is older than that version. */
  async drop_l2(runtime, args) {
    return {ok: await runtime.run('coherence_drop', {...args, id: idOf(args), version: idOf(args, 'version')})};
  },
};
