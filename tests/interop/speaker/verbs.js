// The vocabulary of protocol/conformance/README.md: each verb as script runs and plain commands, its answer as JSON.
import {toJson} from './bytes.js';
import {Missing} from './scripts.js';
import {Raised, admitted, claimed, claimedJob, idOf, positive} from './shapes.js';
import {adminVerbs} from './verbs_admin.js';
import {batchVerbs} from './verbs_batches.js';
import {busVerbs} from './verbs_bus.js';
import {cacheVerbs} from './verbs_cache.js';
import {exchangeVerbs} from './verbs_exchange.js';
import {flowVerbs} from './verbs_flows.js';
import {groupVerbs} from './verbs_groups.js';
import {laneVerbs} from './verbs_lanes.js';
import {pureVerbs} from './verbs_pure.js';
import {resultVerbs} from './verbs_results.js';
import {tableVerbs} from './verbs_tables.js';

const queueVerbs = {
  async enqueue(runtime, args) {
    return admitted(await runtime.run('enqueue', {...args, id: idOf(args)}));
  },
  async enqueue_many(runtime, args) {
    if (args.jobs.length === 0) return {error: 'empty_pipeline'};
    const ids = args.jobs.map(([id]) => idOf({id}));
    const replies = await Promise.all(
      args.jobs.map(([, payload], i) =>
        runtime.run('enqueue', {queue: args.queue, id: ids[i], payload}).catch((error) => error),
      ),
    );
    return {ok: replies.map((reply) => (reply instanceof Error ? refused(reply, 'enqueue') : admitted(reply).ok))};
  },
  async enqueue_at(runtime, args) {
    const values = {...args, id: idOf(args), mode: 'at', value_ms: args.run_at_ms};
    return admitted(await runtime.run('schedule', values), 'scheduled');
  },
  async enqueue_in(runtime, args) {
    const values = {...args, id: idOf(args), mode: 'in', value_ms: args.delay_ms};
    return admitted(await runtime.run('schedule', values), 'scheduled');
  },

  async claim(runtime, args) {
    positive(args.lease_ms, 'lease_ms');
    return claimed(await runtime.run('claim', args));
  },
  async claim_batch(runtime, args) {
    positive(args.size, 'size');
    positive(args.lease_ms, 'lease_ms');
    const reply = await runtime.run('bclaim', args);
    return reply.length === 0 ? 'empty' : {ok: reply.map(claimedJob)};
  },

  // The flow link of a job is read by the scripts from its row.
  async complete(runtime, args) {
    const values = {...args, id: idOf(args), parent: args.result === undefined ? undefined : ''};
    return (await runtime.run('complete', values)) === 1 ? 'ok' : {error: 'gone'};
  },
  async retry(runtime, args) {
    positive(args.max_attempts, 'max_attempts');
    return {ok: (await runtime.run('retry', {...args, id: idOf(args)})).toString()};
  },
  async delay(runtime, args) {
    const when = 'run_at_ms' in args ? {mode: 'at', value_ms: args.run_at_ms} : {mode: 'in', value_ms: args.delay_ms};
    await runtime.run('delay', {...args, ...when, id: idOf(args)});
    return 'ok';
  },

  async promote(runtime, args) {
    return {ok: await runtime.run('promote', {limit: 100, ...args})};
  },
  async reap(runtime, args) {
    return {ok: await runtime.run('reap', args)};
  },
  async sweep_stalled(runtime, args) {
    const [recovered, dead] = await runtime.run('sweep_stalled', {max_stalled: 1, limit: 100, ...args});
    return {ok: {recovered: toJson(recovered), dead: toJson(dead)}};
  },
  async sweep_lapsed(runtime, args) {
    const [recovered, dead, fallen] = await runtime.run('sweep_lapsed', {max_stalled: 1, limit: 100, ...args});
    return {ok: {recovered: toJson(recovered), dead: toJson(dead), fallen: toJson(fallen)}};
  },
  async job_stalled(runtime, args) {
    const count = await runtime.send('HGET', runtime.keys.name('job', {...args, id: idOf(args)}), 'stalled');
    return count !== null && Number(count) > 0;
  },

  async extend_lock(runtime, args) {
    positive(args.lease_ms, 'lease_ms');
    return (await runtime.run('extend_lock', {...args, id: idOf(args)})) === 1 ? 'ok' : {error: 'gone'};
  },
  async extend_locks(runtime, args) {
    positive(args.lease_ms, 'lease_ms');
    const id = args.held.map(([held]) => idOf({id: held}));
    const token = args.held.map(([, held]) => held);
    if (id.length === 0) return {ok: []};
    return {ok: toJson(await runtime.run('extend_locks', {...args, id, token}))};
  },
};

const tables = [
  queueVerbs, laneVerbs, batchVerbs, exchangeVerbs, flowVerbs, adminVerbs, busVerbs, groupVerbs, cacheVerbs, tableVerbs,
  pureVerbs, resultVerbs,
];
export const verbs = new Map(tables.flatMap(Object.entries));

const WORDS = [
  [/^EMQKIND /, 'kind'],
  [/^EMQSTALE job gone$/, 'gone'],
  [/^EMQSTALE /, 'stale'],
  [/^EMQLOCK /, 'locked'],
  [/^EMQSTATE not dead$/, 'not_dead'],
  [/^EMQSTATE not paused$/, 'not_paused'],
  [/^EMQSTATE active jobs present$/, 'active'],
  [/^EMQRATE /, 'rate'],
];

/** A refusal of a script in the words of the vocabulary. */
function refused(error, verb) {
  // `retry` has one word for both of its refusals.
  if (verb === 'retry' && error.message.startsWith('EMQSTALE ')) return {error: 'stale'};
  const word = WORDS.find(([pattern]) => pattern.test(error.message));
  return {error: word ? word[1] : {server: error.message}};
}

/** Makes a call. Throws `Missing` when this speaker or the protocol folder does not have the verb. */
export async function call(runtime, verb, args) {
  const run = verbs.get(verb);
  if (run === undefined) throw new Missing(`verb ${verb}`);
  try {
    return await run(runtime, args);
  } catch (error) {
    if (error instanceof Raised) return {raises: error.message};
    if (error.name === 'ReplyError') return refused(error, verb);
    throw error;
  }
}
