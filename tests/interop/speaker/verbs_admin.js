// Operation and reads of a queue.
import {fromBytes, toJson} from './bytes.js';
import {idOf, positive, untilFewer} from './shapes.js';
import {flowVerbs} from './verbs_flows.js';

const SETS = ['pending', 'active', 'schedule', 'dead'];
const METRICS = ['completed', 'failed'];
const ofJob = (args) => ({...args, id: idOf(args)});
const presence = (reply) => (reply === 1 ? 'ok' : {error: 'gone'});
const pairs = (list) => list.filter((_, i) => i % 2 === 0).map((name, i) => [name, list[2 * i + 1]]);

export const adminVerbs = {
  async queue_pause(runtime, args) {
    await runtime.run('queue_pause', args);
    return 'ok';
  },
  async queue_resume(runtime, args) {
    await runtime.run('queue_resume', args);
    return 'ok';
  },
  async update_data(runtime, args) {
    return presence(await runtime.run('update_data', ofJob(args)));
  },
  async update_progress(runtime, args) {
    return presence(await runtime.run('update_progress', ofJob(args)));
  },
  async add_log(runtime, args) {
    const keep = args.keep > 0 ? args.keep : undefined;
    const count = await runtime.run('add_log', {...ofJob(args), keep});
    return count < 0 ? {error: 'gone'} : {ok: count};
  },
  async get_job_logs(runtime, args) {
    const there = await runtime.send('EXISTS', runtime.keys.name('job', ofJob(args)));
    if (there === 0) return {error: 'gone'};
    return {ok: toJson(await runtime.send('LRANGE', runtime.keys.name('logs', ofJob(args)), 0, -1))};
  },
  async remove_job(runtime, args) {
    return presence(await runtime.run('remove_job', {dedup_id: '', ...ofJob(args)}));
  },
  async reprocess_job(runtime, args) {
    return presence(await runtime.run('reprocess', ofJob(args)));
  },
  async cancel_job(runtime, args) {
    const word = (await runtime.run('cancel', ofJob(args))).toString();
    return word === 'absent' ? {error: 'gone'} : {ok: word};
  },
  async cancel_marks(runtime, args) {
    const id = args.ids.map((one) => idOf({id: one}));
    return {ok: id.length === 0 ? [] : toJson(await runtime.run('marks', {...args, id}))};
  },
  /** An event is a JSON object of texts on the queue's channel. */
  async publish(runtime, args) {
    const message = {...Object.fromEntries(args.extra ?? []), event: args.event, job: idOf(args)};
    await runtime.send('PUBLISH', runtime.keys.name('events', args), JSON.stringify(message));
    return 'ok';
  },

  async browse(runtime, args) {
    const pending = runtime.keys.name('pending', args);
    return {ok: toJson(await runtime.send('ZRANGE', pending, '+', '-', 'BYLEX', 'REV', 'LIMIT', 0, args.n))};
  },
  async pending_size(runtime, args) {
    return {ok: await runtime.send('ZCARD', runtime.keys.name('pending', args))};
  },
  async get_counts(runtime, args) {
    const unknown = args.states.find((state) => !SETS.includes(state) && !METRICS.includes(state));
    if (unknown !== undefined) return {error: ['unknown_state', unknown]};
    const sets = args.states.filter((state) => SETS.includes(state));
    const metric = args.states.filter((state) => METRICS.includes(state));
    const keys = sets.map((set) => runtime.keys.name(set, args));
    const counts = await runtime.run('counts', {...args, metric}, keys);
    return {ok: Object.fromEntries([...sets, ...metric].map((name, i) => [name, Number(counts[i])]))};
  },
  async get_job(runtime, args) {
    const row = pairs(await runtime.send('HGETALL', runtime.keys.name('job', ofJob(args))));
    if (row.length === 0) return 'absent';
    return {ok: Object.fromEntries(row.map(([name, value]) => [name.toString(), fromBytes(value)]))};
  },
  async get_job_state(runtime, args) {
    return {ok: (await runtime.run('state_lookup', ofJob(args))).toString()};
  },
  async get_metrics(runtime, args) {
    const key = runtime.keys.name(`metrics:${args.which}`, args);
    const points = runtime.keys.name(`metrics:${args.which}:data`, args);
    const [count, data] = await Promise.all([runtime.send('HGET', key, 'count'), runtime.send('LLEN', points)]);
    return {ok: {count: Number(count ?? 0), data_points: data}};
  },
  async get_deduplication_job_id(runtime, args) {
    const holder = await runtime.send('GET', runtime.keys.name('de', args));
    return holder === null ? 'absent' : {ok: fromBytes(holder)};
  },
  async get_rate_limit_ttl(runtime, args) {
    return {ok: await runtime.run('rate_ttl', {...args, max: args.max_jobs ?? 0})};
  },
  async get_global_rate_limit(runtime, args) {
    const max = await runtime.send('HGET', runtime.keys.name('meta', args), 'max');
    return {ok: Number(max ?? 0)};
  },
  async is_maxed(runtime, args) {
    await runtime.run('is_maxed', args);
    return 'ok';
  },

  async drain(runtime, args) {
    const more = args.include_schedule ? [runtime.keys.name('schedule', args)] : [];
    return {ok: await untilFewer((limit) => runtime.run('drain', {...args, limit}, more))};
  },
  async obliterate(runtime, args) {
    const values = {...args, force: args.force ? 'force' : '', budget: args.budget ?? 1000};
    return (await runtime.run('obliterate', values)) === 0 ? 'ok' : 'more';
  },

  // Repeats: the clock is the server's, so a period begins where the script runs.
  async repeat_register(runtime, args) {
    positive(args.every_ms, 'every_ms');
    const reply = await runtime.run('repeat_register', {...args, first: args.first_in_ms ?? 0, mode: 'in'});
    return {ok: reply === 1 ? 'registered' : 'exists'};
  },
  async repeat_cancel(runtime, args) {
    return {ok: (await runtime.run('repeat_cancel', args)) === 1 ? 'cancelled' : 'absent'};
  },
  async repeat_due(runtime, args) {
    const due = await runtime.run('repeat_due', args);
    return {ok: due.map(([name, every, template]) => [name, every, template].map(toJson))};
  },
  async repeat_advance(runtime, args) {
    const reply = await runtime.run('repeat_advance', {...args, next: args.every_ms, mode: 'in'});
    return {ok: reply === 1 ? 'advanced' : 'absent'};
  },
  /** One tick of a pump: what is due is promoted, repeats are fired, records are brought to their parents. */
  async pump_sweep(runtime, args) {
    const promoted = await runtime.run('promote', {...args, limit: 100});
    const due = await runtime.run('repeat_due', {...args, limit: 100});
    const id = await Promise.all(due.map(() => runtime.mint('JOB')));
    const fired =
      due.length === 0
        ? []
        : await runtime.run('repeat_fire', {...args, id, name: due.map(([name]) => name), seen_run: due.map((one) => one[3])});
    const {ok: delivered} = await flowVerbs.deliver(runtime, args);
    return {ok: {promoted, fired: fired.filter((verdict) => verdict === 1).length, delivered}};
  },
  async repeat_count(runtime, args) {
    return {ok: await runtime.send('ZCARD', runtime.keys.name('repeat', args))};
  },
};
