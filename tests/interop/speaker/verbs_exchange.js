// Many jobs in one call: the extensions `take`, `settle` and `settle_and_take`.
import {claimedJob, idOf, positive} from './shapes.js';

const VERDICTS = new Map([
  [1, 'completed'], [2, 'scheduled'], [3, 'dead'], [4, 'delayed'], [5, 'handed_back'],
  [0, {error: 'gone'}], [-1, {error: 'stale'}],
]);
const GATES = ['open', 'paused', 'concurrency', 'rate', 'late'];

/** A settlement as the script reads it: id, token, kind, and what the kind needs. */
function settlement(one) {
  const {token, text, wait_ms = 0, max_attempts = 3, keep_ms = 0} = one;
  const id = idOf(one);
  switch (one.as) {
    case 'done': return text === undefined && keep_ms === 0 ? [id, token, 'd'] : [id, token, 'D', text ?? id, keep_ms];
    case 'retry': return [id, token, 'r', text ?? '', wait_ms, max_attempts, keep_ms];
    case 'dead': return [id, token, 'k', text ?? '', keep_ms];
    case 'delay': return [id, token, 'w', wait_ms];
    case 'hand_back': return [id, token, 'h'];
    default: throw new Error(`no such kind of settlement: ${one.as}`);
  }
}

/** A claim as the script reads it: how many, for how long, from where and in which order. */
function request({most, lease_ms, lanes = true, flat = true, lanes_first = false}) {
  positive(most, 'most');
  positive(lease_ms, 'lease_ms');
  if (!lanes && !flat) throw new Error('a claim from neither lanes nor the flat set');
  return [most, lease_ms, !lanes ? 'f' : !flat ? 'l' : lanes_first ? 'lf' : 'fl'];
}

function told([gate, , more, expired, jobs]) {
  const one = ([id, payload, token, group]) => claimedJob([id, payload, token, group ?? undefined]);
  const out = {jobs: jobs.map(one), gate: GATES[gate], more: more === 1};
  return expired > 0 ? {...out, expired} : out;
}

const settledAs = (replies) => replies.map((reply) => VERDICTS.get(reply));

export const exchangeVerbs = {
  async take(runtime, args) {
    const keys = ['pending', 'active'].map((type) => runtime.keys.name(type, args));
    return {ok: told(await runtime.scripts.runAs('take', keys, [runtime.keys.name('base', args), ...request(args)]))};
  },
  async settle(runtime, args) {
    const keys = ['pending', 'active'].map((type) => runtime.keys.name(type, args));
    const base = runtime.keys.name('base', args);
    const settlements = args.jobs.flatMap(settlement);
    if (args.take === undefined) {
      return {ok: settledAs(await runtime.scripts.runAs('settle', keys, [base, ...settlements]))};
    }
    const argv = [base, ...request(args.take), ...settlements];
    const [settled, taken] = await runtime.scripts.runAs('settle_and_take', keys, argv);
    return {ok: {...told(taken), settled: settledAs(settled)}};
  },
};
