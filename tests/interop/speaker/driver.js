// Runs conformance scenarios: mints, captures, waits, raw commands, a second connection that takes messages.
import {setTimeout as sleep} from 'node:timers/promises';
import {isObject, toBytes, toJson} from './bytes.js';
import {matches} from './compare.js';
import {CancelToken, Cancelled, Meter} from './local.js';
import {Runtime} from './runtime.js';
import {Missing} from './scripts.js';
import {call} from './verbs.js';

/** What a scenario may need: whether this driver, on this server, has it. */
const NEEDS = {
  subscriber: () => true,
  second_client: () => true,
  private: (_, options) => options.privateServer,
  hash_field_ttl: async (client) => (await client.send('COMMAND', 'INFO', 'HPEXPIRE'))[0] !== null,
};

/** RESP2 has the streams of XREAD and XREADGROUP as a list of pairs; as a flat list they read like a map. */
function flat(name, reply) {
  return /^XREAD(GROUP)?$/i.test(name) && Array.isArray(reply) && Array.isArray(reply[0]) ? reply.flat() : reply;
}

/** Thrown when a scenario cannot be run here. */
export class Skipped extends Error {}

/** Thrown at the first step that does not give what is expected. */
export class Mismatch extends Error {}

/**
 * Runs one scenario and removes its keys. Throws `Mismatch` or `Skipped`. `options.privateServer`: the server is nobody
 * else's, so its memory limit may be changed.
 */
export async function runScenario(url, protocol, scenario, base, options = {}) {
  const run = new Run(url, protocol, scenario, base, options);
  try {
    await run.begin();
    await run.steps(scenario.steps);
  } finally {
    await run.end();
  }
}

class Run {
  constructor(url, protocol, scenario, base, options) {
    this.options = options;
    this.url = url;
    this.protocol = protocol;
    this.scenario = scenario;
    this.bound = {q: `${base}.${scenario.name}`};
    this.captured = {};
    this.clients = [];
    this.tokens = new Map();
    this.meter = new Meter();
    this.heard = new Map();
  }

  async begin() {
    for (let i = 0; i < 2; ++i) this.clients.push(await Runtime.open(this.url, this.protocol));
    for (const need of this.scenario.needs ?? []) {
      if (!(await NEEDS[need]?.(this.clients[0], this.options))) throw new Skipped(`needs ${need}`);
    }
    if (this.scenario.needs?.includes('private')) {
      this.settings = await this.clients[0].send('CONFIG', 'GET', 'maxmemory*');
    }
    await this.removeKeys();
  }

  async end() {
    this.subscriber?.close();
    for (let i = 0; i < (this.settings?.length ?? 0); i += 2) {
      await this.clients[0].send('CONFIG', 'SET', this.settings[i], this.settings[i + 1]);
    }
    if (this.clients.length === 2) await this.removeKeys();
    for (const client of this.clients) await client.close();
  }

  /** Keys of the scenario's queue and cache table, and of those whose names continue it after a dot. */
  async removeKeys() {
    const patterns = ['emq', 'ecc'].flatMap((plane) => ['}:', '.'].map((end) => `${plane}:{${this.bound.q}${end}*`));
    for (const pattern of patterns) {
      let cursor = '0';
      do {
        const [next, keys] = await this.clients[0].send('SCAN', cursor, 'MATCH', pattern, 'COUNT', 1000);
        for (const key of keys) await this.clients[0].send('DEL', key);
        cursor = next.toString();
      } while (cursor !== '0');
    }
  }

  /** The value with every `${name}` replaced, also in the names of fields. */
  withNames(value) {
    if (typeof value === 'string') {
      return value.replace(/\$\{([^}]+)\}/g, (mark, name) => this.bound[name] ?? mark);
    }
    if (Array.isArray(value)) return value.map((item) => this.withNames(item));
    if (!isObject(value)) return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [this.withNames(key), this.withNames(item)]));
  }

  async steps(steps) {
    for (const [index, unbound] of steps.entries()) {
      // The steps of a block are made later, with the names of then.
      const {steps: block, ...head} = unbound;
      const step = this.withNames(head);
      if (block !== undefined) {
        await this.block(step, block);
        continue;
      }
      try {
        await this.step(step);
      } catch (error) {
        if (error instanceof Missing) throw new Skipped(error.message);
        throw new Mismatch(`step ${index} ${JSON.stringify(step)}: ${error.message}`, {cause: error});
      }
    }
  }

  async block({call: kind, args}, steps) {
    if (kind === 'repeat') {
      for (let i = 0; i < args.times; ++i) await this.steps(steps);
    } else if (kind === 'each') {
      for (const fields of this.captured[args.of]?.ok ?? []) {
        args.as.forEach((name, i) => this.bind(name, fields[i]));
        await this.steps(steps);
      }
    } else {
      throw new Skipped(`there is no block ${kind} here`);
    }
  }

  /** From now on `${name}` is that value's text. */
  bind(name, value) {
    this.bound[name] = toBytes(value).toString();
  }

  /** Binds a result, or what is in its `ok`: a text or a number to a name, elements of a list to a list of names. */
  capture(names, result) {
    const value = isObject(result) && 'ok' in result ? result.ok : result;
    if (Array.isArray(names)) {
      names.forEach((name, i) => this.bind(name, value[i]));
      return;
    }
    this.captured[names] = result;
    if (typeof value === 'string' || typeof value === 'number') this.bind(names, value);
  }

  /** What a step answers, without its expectations. */
  perform(step, client) {
    const host = this[`do_${step.call}`];
    if (host) return host.call(this, step.args, client, step);
    return call(client, step.call, step.queue === undefined ? step.args : {...step.args, queue: step.queue});
  }

  async step(step) {
    const result = await this.perform(step, this.clients[step.client ?? 0]);
    for (const name of ['result', 'reply']) {
      if (name in step && !matches(step[name], result)) throw new Error(`got ${JSON.stringify(result)}`);
    }
    if ('capture' in step) this.capture(step.capture, result);
  }

  async do_mint({namespace, as}) {
    // Always by the same client, so that the ids of a scenario rise.
    this.bound[as] = await this.clients[0].mint(namespace);
  }

  async do_wait({ms}) {
    const until = Date.now() + ms;
    while (Date.now() < until) await sleep(until - Date.now()); // a timer may be early by a part of a millisecond
  }

  async do_raw({command}, client, {on, reply}) {
    try {
      const connection = on === 'subscriber' ? this.subscriber : client;
      return toJson(flat(command[0], await connection.send(...command)));
    } catch (error) {
      if (error.name === 'ReplyError' && isObject(reply) && 'error' in reply) return {error: error.message};
      throw error;
    }
  }

  async do_pipeline({commands}, client) {
    return toJson(await client.connection.pipeline(commands));
  }

  /** All at once, from both clients in turns; the results in order. */
  do_together({steps, times = 1}) {
    const all = steps.flatMap((step) => Array(times).fill(step));
    return Promise.all(all.map((step, i) => this.perform(step, this.clients[i % this.clients.length])));
  }

  // What a host has of its own, without a server: cancel tokens and a meter.
  async do_cancel_new({as}) {
    this.tokens.set(as, new CancelToken());
    return 'ok';
  }
  async do_cancel({token, reason}) {
    this.tokens.get(token).cancel(reason);
    return 'ok';
  }
  async do_cancel_check({token}) {
    const reason = this.tokens.get(token).take();
    return reason === null ? 'ok' : {error: ['cancelled', reason]};
  }
  async do_cancel_raise({token}) {
    try {
      this.tokens.get(token).throwIfCancelled();
      return 'ok';
    } catch (error) {
      if (error instanceof Cancelled) return {raises: error.reason};
      throw error;
    }
  }
  async do_meter_attach({event, as}) {
    const heard = [];
    this.heard.set(as, heard);
    this.meter.attach(event, (values, labels) => heard.push({...values, ...labels}));
    return 'ok';
  }
  async do_meter_emit({event, values, labels}) {
    this.meter.emit(event, values, labels);
    return 'ok';
  }
  async do_meter_heard({as}) {
    return {ok: this.heard.get(as)};
  }

  async do_subscribe({channel}) {
    // Only RESP3 takes commands over a connection that is subscribed.
    const commands = this.scenario.steps.some((step) => 'on' in step);
    this.subscriber ??= await (commands ? this.clients[1].pushConnection() : this.clients[1].subscriber());
    await this.subscriber.subscribe(channel);
  }

  async do_message(args) {
    const message = await this.subscriber.next(args.within_ms);
    if (message === null) throw new Error('no message came');
    const got = message.toString();
    if ('text' in args && !toBytes(args.text).equals(message)) throw new Error(`the message is ${got}`);
    if ('json' in args && !matches(args.json, JSON.parse(got))) throw new Error(`the message is ${got}`);
  }

  async do_reconnect({within_ms}) {
    const old = this.subscriber.id;
    const until = Date.now() + within_ms;
    await this.clients[0].send('CLIENT', 'KILL', 'ID', old);
    while (!this.subscriber.live || this.subscriber.id === old) {
      if (Date.now() > until) throw new Error('the subscription did not come back');
      await sleep(2);
    }
  }
}
