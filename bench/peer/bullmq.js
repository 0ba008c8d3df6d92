// BullMQ with its defaults, for the bench: `node bullmq.js SOCKET`.
//
// Prints its version, then answers each line of its input ("process JOBS" or "end_to_end JOBS") with the seconds it took,
// a queue of its own for each. A handler that does nothing, 100 slots, jobs of 100 bytes, removed on completion.
import {readFileSync} from 'node:fs';
import {createInterface} from 'node:readline';
import {Queue, Worker} from 'bullmq';

const connection = {path: process.argv[2], maxRetriesPerRequest: null};
const payload = {text: 'x'.repeat(100)};
const kBatch = 100; // jobs of one addBulk while a worker runs
const kInFlight = 3;

function batch(count) {
  return Array.from({length: count}, () => ({name: 'job', data: payload, opts: {removeOnComplete: true}}));
}

/** A worker that has not begun, and a promise that comes once it has completed `jobs`. */
async function workerOf(name, jobs) {
  const worker = new Worker(name, async () => {}, {connection, concurrency: 100, autorun: false});
  let completed = 0;
  const all = new Promise((resolve, reject) => {
    worker.on('completed', () => ++completed === jobs && resolve());
    worker.on('failed', (job, error) => reject(error));
    worker.on('error', reject);
  });
  await worker.waitUntilReady();
  return {worker, all};
}

async function add(queue, jobs) {
  const window = [];
  for (let at = 0; at < jobs; at += kBatch) {
    window.push(queue.addBulk(batch(Math.min(kBatch, jobs - at))));
    if (window.length >= kInFlight) await window.shift();
  }
  await Promise.all(window);
}

let runs = 0;
async function run(what, jobs) {
  const name = `bench-${++runs}`;
  const queue = new Queue(name, {connection});
  await queue.waitUntilReady();
  if (what === 'process') {
    for (let at = 0; at < jobs; at += 1000) await queue.addBulk(batch(Math.min(1000, jobs - at)));
  }
  const {worker, all} = await workerOf(name, jobs);
  let begin;
  if (what === 'process') {
    begin = process.hrtime.bigint();
    worker.run();
    await all;
  } else {
    worker.run();
    await new Promise((resolve) => setTimeout(resolve, 50)); // it waits for work by now
    begin = process.hrtime.bigint();
    await Promise.all([add(queue, jobs), all]);
  }
  const seconds = Number(process.hrtime.bigint() - begin) / 1e9;
  await worker.close();
  await queue.close();
  return seconds;
}

const manifest = new URL('node_modules/bullmq/package.json', import.meta.url);
console.log(`BullMQ ${JSON.parse(readFileSync(manifest)).version}, Node ${process.versions.node}`);
for await (const line of createInterface({input: process.stdin})) {
  const [what, jobs] = line.split(' ');
  try {
    console.log(await run(what, Number(jobs)));
  } catch (error) {
    console.log(`error: ${error.message}`);
  }
}
process.exit(0);
