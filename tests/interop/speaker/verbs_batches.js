// Batches of flat jobs: when one is taken, how a worker settles it, and what its report says.
import {fromBytes} from './bytes.js';
import {claimedJob, positive} from './shapes.js';
import {setTimeout as sleep} from 'node:timers/promises';

const POLL_MS = 5;

/** All that wait, once there are enough of them or the window is over; never none. */
function decide({min_size, timeout, depth, elapsed_ms}) {
  positive(min_size, 'min_size');
  positive(timeout, 'timeout');
  return depth >= min_size || (elapsed_ms >= timeout && depth > 0) ? {flush: depth} : 'wait';
}

/** Waits for a batch and claims it; an empty one when another was faster. */
async function take(runtime, args) {
  const begin = Date.now();
  for (;;) {
    const depth = await runtime.send('ZCARD', runtime.keys.name('pending', args));
    const decision = decide({...args, depth, elapsed_ms: Date.now() - begin});
    if (decision !== 'wait') return runtime.run('bclaim', {...args, size: decision.flush});
    await sleep(POLL_MS);
  }
}

/** Settles a member by its verdict and says so on the events channel. */
async function settle(runtime, args, [id, , token], verdict) {
  const job = {queue: args.queue, id: id.toString(), token};
  const [what, detail] = verdict === 'omit' ? ['error', 'missing verdict'] : verdict ?? ['ok'];
  let event = 'failed';
  if (what === 'ok') {
    await runtime.run('complete', job);
    event = 'completed';
  } else if (what === 'delay') {
    await runtime.run('delay', {...job, mode: 'in', value_ms: detail});
    event = 'delayed';
  } else {
    await runtime.run('retry', {...job, delay_ms: args.retry_delay_ms, max_attempts: args.max_attempts, error: detail});
  }
  await runtime.send('PUBLISH', runtime.keys.name('events', args), JSON.stringify({event, job: job.id}));
}

export const batchVerbs = {
  batch_decide: (_, args) => decide(args),
  async batch_run(runtime, args) {
    const batches = [];
    while (batches.length < args.calls) {
      const batch = await take(runtime, args);
      if (batch.length === 0) continue;
      batches.push(batch.map(claimedJob));
      for (const member of batch) await settle(runtime, args, member, args.verdicts[fromBytes(member[1])]);
    }
    return batches;
  },
  /** Each member in one list: what did not end as its verdict says will be tried again. */
  batch_partition(_, {members}) {
    const report = {completed: [], delayed: [], dead: [], retried: []};
    for (const [id, verdict, answer] of members) {
      if (verdict === 'ok' && answer === 'ok') report.completed.push(id);
      else if (verdict === 'delay' && answer === 'ok') report.delayed.push(id);
      else if (verdict === 'error' && answer?.ok === 'dead') report.dead.push(id);
      else report.retried.push(id);
    }
    return report;
  },
};
