// Flows: parents that wait for children, deaths that climb, the outbox between queues.
import {fromBytes} from './bytes.js';
import {idOf} from './shapes.js';

const NUL = 0;

/** Cuts a field off at the first NUL byte; null when there is none. */
function cut(bytes) {
  const at = bytes.indexOf(NUL);
  return at < 0 ? null : [bytes.subarray(0, at).toString(), bytes.subarray(at + 1)];
}

/** An outbox record, or null when it is malformed. Only the last field may hold NUL bytes. */
export function parseRecord(bytes) {
  const fields = [];
  const take = (count) => {
    for (; count > 0; --count) {
      const part = cut(bytes);
      if (part === null) return false;
      fields.push(part[0]);
      bytes = part[1];
    }
    return true;
  };
  if (!take(1)) return null;
  if (fields[0] !== '') {
    if (!take(2)) return null;
    const [queue, parent, child] = fields;
    return {kind: 'complete', queue, parent, child, last: bytes};
  }
  if (!take(5) || fields[1] !== 'fail') return null;
  const [, , queue, parent, child, policy] = fields;
  return {kind: 'fail', queue, parent, child, policy, last: bytes};
}

/** The bytes of a record as `parseRecord` gives it. */
export function writeRecord({kind, queue, parent, child, policy, last}) {
  const fields = kind === 'fail' ? ['', 'fail', queue, parent, child, policy] : [queue, parent, child];
  return Buffer.concat([Buffer.from(fields.map((field) => field + '\0').join('')), last]);
}

const mapOf = (list) =>
  Object.fromEntries(
    list.flatMap((name, i) => (i % 2 === 0 ? [[name.toString(), fromBytes(list[i + 1])]] : [])),
  );

export const flowVerbs = {
  async children_values(runtime, args) {
    return {ok: mapOf(await runtime.send('HGETALL', runtime.keys.name('processed', {...args, id: idOf(args)})))};
  },
  async ignored_failures(runtime, args) {
    return {ok: mapOf(await runtime.send('HGETALL', runtime.keys.name('unsuccessful', {...args, id: idOf(args)})))};
  },
  async dependencies(runtime, args) {
    const count = await runtime.send('GET', runtime.keys.name('dependencies', {...args, id: idOf(args)}));
    return {ok: Number(count ?? 0)};
  },
};
