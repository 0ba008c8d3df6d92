// The speaker as a child process: node peer.js --url URL [--protocol FOLDER]
//
// Standard input: one JSON object a line, {"n": number, "do": verb, "queue": name, "args": {...}}. Standard output: one
// line each, {"n": number, "result": what the verb answers} or {"n": number, "failed": text}. Requests run at the same
// time, so answers come in any order. It ends with its standard input.
//
// Verbs: those of the conformance vocabulary, the calls below, and of the driver's own steps mint, raw, subscribe and
// message. Bytes that are no printable ASCII are {"hex": "..."}.
import {createInterface} from 'node:readline';
import {setTimeout as sleep} from 'node:timers/promises';
import {parseArgs} from 'node:util';
import {fromBytes, toJson} from './speaker/bytes.js';
import {Protocol} from './speaker/protocol.js';
import {Runtime} from './speaker/runtime.js';
import {call} from './speaker/verbs.js';

const {values} = parseArgs({options: {url: {type: 'string'}, protocol: {type: 'string'}}});
const runtime = await Runtime.open(values.url, new Protocol(values.protocol));
let subscriber;

/** A verb whose answer has to be {"ok": ...}. */
async function must(verb, args) {
  const answer = await call(runtime, verb, args);
  if (answer !== 'ok' && !('ok' in answer)) throw new Error(`${verb} ${JSON.stringify(args)}: ${JSON.stringify(answer)}`);
  return answer.ok;
}

const own = {
  mint: ({namespace}) => runtime.mint(namespace),
  raw: async ({command}) => toJson(await runtime.send(...command)),
  async subscribe({channel}) {
    subscriber ??= await runtime.subscriber();
    await subscriber.subscribe(channel);
    return 'ok';
  },
  async message({within_ms}) {
    const message = await subscriber.next(within_ms);
    return message === null ? null : fromBytes(message);
  },

  /** Admits jobs with the payloads `<prefix><number>`: to the lanes in turns with flat jobs between them. */
  async produce({queue, prefix, count, lanes}) {
    const targets = [null, ...lanes];
    for (let i = 0; i < count; ++i) {
      const args = {queue, id: await runtime.mint('JOB'), payload: prefix + i};
      const group = targets[i % targets.length];
      await must(group === null ? 'enqueue' : 'lane_enqueue', {...args, group});
    }
    return count;
  },

  /**
   * Works until the queue has counted `total` completions: what is told to fail at its first attempt (payload ends in
   * `fail_ending`) is retried at once, the rest completed. Gives the payloads that it completed and how many it failed.
   */
  async consume({queue, total, lease_ms, fail_ending}) {
    const done = [];
    let failed = 0;
    for (;;) {
      let claimed = await call(runtime, 'claim', {queue, lease_ms});
      if (claimed === 'empty') claimed = await call(runtime, 'lane_claim', {queue, lease_ms});
      if (claimed === 'empty') {
        if ((await must('get_metrics', {queue, which: 'completed'})).count >= total) return {done, failed};
        if ((await must('promote', {queue, limit: 100})) === 0) await sleep(1);
        continue;
      }
      const [id, payload, token] = claimed.ok;
      if (token === 1 && payload.endsWith(fail_ending)) {
        await must('retry', {queue, id, token, delay_ms: 0, max_attempts: 3, error: 'once'});
        ++failed;
      } else {
        await must('complete', {queue, id, token});
        done.push(payload);
      }
    }
  },
};

async function answer(request) {
  const args = {...request.args, ...(request.queue === undefined ? {} : {queue: request.queue})};
  const verb = own[request.do];
  try {
    return {result: await (verb ? verb(args) : call(runtime, request.do, args))};
  } catch (error) {
    return {failed: error.message};
  }
}

const running = new Set();
for await (const line of createInterface({input: process.stdin})) {
  const request = JSON.parse(line);
  const work = answer(request).then((outcome) => {
    process.stdout.write(JSON.stringify({n: request.n, ...outcome}) + '\n');
    running.delete(work);
  });
  running.add(work);
}
await Promise.all(running);
subscriber?.close();
await runtime.close();
