// Jobs with options of their own, and what became of them: the extensions `admit` and `ended`, the key `result`, and the
// channel `ended`.
import {setTimeout as sleep} from 'node:timers/promises';
import {fromBytes} from './bytes.js';
import {idOf, positive} from './shapes.js';

/** How a job is run: the name in the record of `admit` by the name of the argument. */
const RUN = new Map([
  ['max_attempts', 'max_attempts'], ['timeout_ms', 'timeout'], ['keep_ms', 'keep'], ['backoff', 'backoff'],
  ['traceparent', 'traceparent'], ['expire_ms', 'expire'], ['expires_at_ms', 'expires_at'],
]);
const ADMITTED = new Map([[1, 'enqueued'], [0, 'duplicate'], [-2, {error: 'kind'}], [-3, {error: 'broken'}]]);
const RECONNECT_MS = 10;

/** A job as a record of `admit`: where it goes, then how it is run. */
function record(job) {
  const mode = job.delay_ms !== undefined ? 'in' : job.run_at_ms !== undefined ? 'at' : '';
  const pairs = [...RUN].filter(([argument]) => job[argument] !== undefined).map(([argument, name]) => [name, job[argument]]);
  return [
    idOf(job), job.payload, job.group === undefined ? '' : idOf(job, 'group'), mode, job.delay_ms ?? job.run_at_ms ?? 0,
    pairs.length, ...pairs.flat(),
  ];
}

/** The value of `result:<id>`: a word, NUL, bytes. */
function kept(value) {
  const end = value.indexOf(0);
  return {[value.subarray(0, end).toString()]: fromBytes(value.subarray(end + 1))};
}

/** How the job has ended as far as can be told, null while it has not. */
async function look(runtime, args, id) {
  const [state, lastError, result] = await runtime.scripts.runAs('ended', [runtime.keys.name('base', args)], [id]);
  if (result !== null) return kept(result);
  if (state === null) return 'gone';
  return state.toString() === 'dead' ? {dead: fromBytes(lastError ?? Buffer.alloc(0))} : null;
}

export const resultVerbs = {
  async admit(runtime, args) {
    const keys = runtime.protocol.scripts.get('admit').keys.map((type) => runtime.keys.name(type, args));
    const argv = [runtime.keys.name('base', args), '', 'each', 0, ...args.jobs.flatMap(record)];
    return {ok: (await runtime.scripts.runAs('admit', keys, argv)).map((reply) => ADMITTED.get(reply))};
  },
  async result(runtime, args) {
    const value = await runtime.send('GET', runtime.keys.name('result', {...args, id: idOf(args)}));
    return {ok: value === null ? null : kept(value)};
  },
  /** Waits for the end without asking again and again: first it listens, then it looks, and again whenever it is told. */
  async await_end(runtime, args) {
    positive(args.within_ms, 'within_ms');
    const id = idOf(args);
    const until = Date.now() + args.within_ms;
    let subscriber;
    const told = Buffer.from(id);
    // What was told while the link was away is not told again.
    subscriber = await runtime.subscriber(() => subscriber?.take(told));
    try {
      await subscriber.subscribe(runtime.keys.name('ended', args));
      for (;;) {
        while (!subscriber.live && Date.now() < until) await sleep(RECONNECT_MS);
        const end = await look(runtime, args, id);
        if (end !== null) return {ok: end};
        for (let message; !message?.equals(told); ) {
          message = await subscriber.next(Math.max(until - Date.now(), 0));
          if (message === null) return {ok: (await look(runtime, args, id)) ?? 'timeout'};
        }
      }
    } finally {
      subscriber.close();
    }
  },
};
