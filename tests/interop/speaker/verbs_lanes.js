// Lanes: admission, claims in turns, pauses, ceilings, weights, moves.
import {admitted, claimed, claimedJob, idOf, positive, untilFewer} from './shapes.js';

const turn = (reply) => (reply.length === 0 ? 'empty' : {ok: reply.map(claimedJob)});
const lane = (args) => ({...args, group: idOf(args, 'group')});

export const laneVerbs = {
  async lane_enqueue(runtime, args) {
    return admitted(await runtime.run('genqueue', {...lane(args), id: idOf(args)}));
  },
  async lane_claim(runtime, args) {
    positive(args.lease_ms, 'lease_ms');
    return claimed(await runtime.run('gclaim', args));
  },
  async lane_wclaim(runtime, args) {
    positive(args.lease_ms, 'lease_ms');
    return turn(await runtime.run('gwclaim', args));
  },
  async lane_bclaim(runtime, args) {
    positive(args.lease_ms, 'lease_ms');
    return turn(await runtime.run('gbclaim', args));
  },
  async lane_weight(runtime, args) {
    positive(args.weight, 'weight');
    await runtime.run('gweight', lane(args));
    return 'ok';
  },
  async lane_pause(runtime, args) {
    await runtime.run('gpause', lane(args));
    return 'ok';
  },
  async lane_resume(runtime, args) {
    await runtime.run('gresume', lane(args));
    return 'ok';
  },
  async lane_limit(runtime, args) {
    await runtime.run('glimit', {...lane(args), ceiling: positive(args.limit, 'limit')});
    return 'ok';
  },
  async lane_reassign(runtime, args) {
    const reply = await runtime.run('greassign', {...lane(args), id: idOf(args)});
    if (reply < 0) return {error: reply === -1 ? 'not_found' : 'not_pending'};
    return {ok: reply === 1 ? 'reassigned' : 'noop'};
  },
  async lane_drain(runtime, args) {
    return {ok: await untilFewer((limit) => runtime.run('gdrain', {...lane(args), limit}))};
  },
  async lane_reap(runtime, args) {
    return {ok: await runtime.run('greap_group', {limit: 100, ...lane(args)})};
  },
  async lane_depth(runtime, args) {
    return {ok: await runtime.send('ZCARD', runtime.keys.name('lane', lane(args)))};
  },
  async lane_depths(runtime, args) {
    if (args.groups.length === 0) return {ok: {}};
    const group = args.groups.map((one) => idOf({id: one}));
    const depths = await runtime.run('lane_counts', {...args, group});
    return {ok: Object.fromEntries(group.map((one, i) => [one, depths[i]]))};
  },
};
