// Consumers of a stream's group: first what the consumer still holds, then what others left idle, then new entries.
import {setTimeout as sleep} from 'node:timers/promises';
import {keyOf, record} from './verbs_bus.js';

const PAGE = 100;
const WITHIN_MS = 10_000;
const BEAT_MS = 10;

class Consumer {
  constructor(runtime, args) {
    this.runtime = runtime;
    this.args = args;
    this.key = keyOf(runtime, args);
    this.handled = [];
    this.cursor = '0-0';
  }

  get over() {
    return this.handled.length >= this.args.calls;
  }

  /** The group, from the head of the stream or from now on, when it is not there yet. */
  async begin() {
    const from = this.args.group_start === 'head' ? '0' : '$';
    try {
      await this.runtime.send('XGROUP', 'CREATE', this.key, this.args.group, from, 'MKSTREAM');
    } catch (error) {
      if (!error.message.startsWith('BUSYGROUP')) throw error;
    }
  }

  /** A page of this consumer's own entries above `from`, or of new ones: `>`. */
  async page(from) {
    const {group, consumer} = this.args;
    const reply = await this.runtime.send(
      'XREADGROUP', 'GROUP', group, consumer, 'COUNT', PAGE, 'STREAMS', this.key, from,
    );
    return reply === null ? [] : reply[0][1];
  }

  /** One pass over what it held before: its cursor moves on over entries that fail. */
  async history() {
    for (let from = '0'; !this.over; ) {
      const entries = await this.page(from);
      if (entries.length === 0) return;
      await this.handle(entries);
      from = entries[entries.length - 1][0];
    }
  }

  /** What others have held for too long; the next pass goes on where this one ended. */
  async rescue() {
    const {group, consumer, min_idle_ms: idle} = this.args;
    const [next, entries] = await this.runtime.send(
      'XAUTOCLAIM', this.key, group, consumer, idle, this.cursor, 'COUNT', PAGE,
    );
    this.cursor = next;
    await this.handle(entries.filter((entry) => entry !== null));
  }

  async handle(entries) {
    const {group, verdicts} = this.args;
    for (const entry of entries) {
      const [id, fields] = entry;
      // An entry that was trimmed has no fields: nobody will ever handle it.
      if (fields !== null) {
        const [pending] = await this.runtime.send('XPENDING', this.key, group, id, id, 1);
        const [receipt, texts] = record(entry);
        this.handled.push([receipt, texts, pending[3], group]);
        if (texts.k in verdicts) continue;
      }
      await this.runtime.send('XACK', this.key, group, id);
    }
  }
}

export const groupVerbs = {
  async group_run(runtime, args) {
    const consumer = new Consumer(runtime, args);
    const until = Date.now() + WITHIN_MS;
    await consumer.begin();
    await consumer.history();
    while (!consumer.over && Date.now() < until) {
      await consumer.rescue();
      const entries = await consumer.page('>');
      await consumer.handle(entries);
      if (entries.length === 0 && consumer.cursor.toString() === '0-0' && !consumer.over) await sleep(BEAT_MS);
    }
    return consumer.handled;
  },
};
