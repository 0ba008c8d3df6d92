// What the verbs share: checks of arguments before anything is sent, and shapes of answers.
import {fromBytes} from './bytes.js';
import {checkId} from './keys.js';

/** An argument that the host refuses itself: nothing is sent. */
export class Raised extends Error {}

/** A number, or its decimal text, which is what a captured one comes as. */
export function positive(given, name) {
  const value = typeof given === 'string' && /^[0-9]+$/.test(given) ? Number(given) : given;
  if (!Number.isSafeInteger(value) || value < 1) throw new Raised(`${name} must be a positive integer`);
  return value;
}

/** The namespace is the script's affair, the form is the host's. */
export function idOf(args, name = 'id') {
  try {
    return checkId(args[name]);
  } catch (error) {
    throw new Raised(error.message);
  }
}

export const admitted = (reply, word = 'enqueued') => ({ok: reply === 1 ? word : 'duplicate'});

/** [id, payload or null, token] and for lanes the group. */
export const claimedJob = ([id, payload, token, group]) => {
  const job = [id.toString(), payload === null ? null : fromBytes(payload), token];
  return group === undefined ? job : [...job, group.toString()];
};

export const claimed = (reply) => (reply.length === 0 ? 'empty' : {ok: claimedJob(reply)});

/** Runs a bounded script again and again until it did less than it might have; gives the sum. */
export async function untilFewer(run, limit = 1000) {
  for (let sum = 0; ; ) {
    const count = await run(limit);
    sum += count;
    if (count < limit) return sum;
  }
}
