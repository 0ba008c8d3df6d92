// Flows: parents that wait for children, deaths that climb, the outbox between queues.
import {fromBytes, toJson} from './bytes.js';
import {checkId, checkQueue} from './keys.js';
import {Raised, idOf, positive} from './shapes.js';

const LEVELS = 8;

const NUL = 0;

/** Cuts a field off at the first NUL byte; null when there is none. */
function cut(bytes) {
  const at = bytes.indexOf(NUL);
  return at < 0 ? null : [bytes.subarray(0, at).toString(), bytes.subarray(at + 1)];
}

/**
 * An outbox record, or null when it is malformed: wrong fields, a name or an id that cannot be. Only the last field may
 * hold NUL bytes.
 */
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
  const failure = fields[0] === '';
  if (!take(failure ? 5 : 2) || (failure && fields[1] !== 'fail')) return null;
  const [queue, parent, child, policy] = failure ? fields.slice(2) : fields;
  try {
    checkQueue(queue);
    checkId(parent);
  } catch {
    return null;
  }
  const record = {kind: failure ? 'fail' : 'complete', queue, parent, child};
  return failure ? {...record, policy, last: bytes} : {...record, last: bytes};
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

/** A flow that the host refuses: `kind` comes from the scripts, these do not. */
class FlowError extends Error {
  constructor(answer) {
    super(JSON.stringify(answer));
    this.answer = answer;
  }
}

/** The tree with the queue of every node filled in: that of its parent when it names none. Nothing is sent. */
function planned(node, queue, level, seen, parent = null) {
  if (level > LEVELS) throw new FlowError(['flow_too_deep', LEVELS]);
  if (seen.has(node.id)) throw new FlowError(['flow_cycle', node.id]);
  seen.add(node.id);
  try {
    checkId(node.id);
    checkQueue(node.queue ?? queue);
  } catch (error) {
    throw new Raised(error.message);
  }
  const plan = {...node, queue: node.queue ?? queue, parent};
  plan.policy = node.ignore_dependency_on_failure ? 'id' : 'fp';
  plan.children = (node.children ?? []).map((child) => planned(child, plan.queue, level + 1, seen, plan));
  return plan;
}

/** The queue of a node's parent as its row names it: empty when it is the node's own. */
const parentQueue = ({queue, parent}) => (parent.queue === queue ? '' : parent.queue);

/** Everything in one queue and no child with children: one script. */
async function addFlat(runtime, root) {
  const key = (type, id) => runtime.keys.name(type, {queue: root.queue, id});
  const keys = [key('job', root.id), key('dependencies', root.id), key('pending', root.id)];
  const argv = [root.id, root.payload, root.children.length];
  for (const {id, payload} of root.children) {
    keys.push(key('job', id));
    argv.push(id, payload);
  }
  argv.push(...root.children.map(({policy}) => policy));
  landed(await runtime.scripts.runAs('enqueue_flow', keys, argv));
}

/** Any other tree: a parent is held before its children come, so none of them can end before it is there. */
async function addNode(runtime, node) {
  const key = (type) => runtime.keys.name(type, node);
  const link = node.parent === null ? ['', '', ''] : [node.parent.id, parentQueue(node), node.policy];
  if (node.children.length === 0) {
    const keys = [key('job'), key('pending')];
    landed(await runtime.scripts.runAs('enqueue_flow_child', keys, [node.id, node.payload, ...link]));
    return;
  }
  const keys = [key('job'), key('dependencies')];
  const ids = node.children.map(({id}) => id);
  const [reply, ...ended] = await runtime.scripts.runAs('hold_parent', keys, [
    node.id, node.payload, ids.length, ...link, ...ids,
  ]);
  landed(reply);
  // A call that was broken off is completed by the same call: what has ended meanwhile does not run again.
  const over = ended.map(String);
  for (const child of node.children) {
    if (!over.includes(child.id)) await addNode(runtime, child);
  }
}

/** 0: it is there already, of this flow. Below: an id is another job's. */
function landed(reply) {
  if (reply < 0) throw new FlowError('taken');
}

/** [id, [ids]], and for a tree [id, [the same of each child]]. */
function shapeOf(root) {
  const tree = root.children.some((child) => child.children.length > 0);
  const nested = (node) => [node.id, node.children.map(nested)];
  return tree ? nested(root) : [root.id, root.children.map((child) => child.id)];
}

async function add(runtime, queue, {parent, children}) {
  const root = planned({...parent, children}, queue, 1, new Set());
  const flat = root.children.every((child) => child.queue === root.queue && child.children.length === 0);
  if (root.children.length === 0) await runtime.run('enqueue', root);
  else await (flat ? addFlat(runtime, root) : addNode(runtime, root));
  return shapeOf(root);
}

/**
 * Brings a record to its parent's queue, a death by that script. Gives its reply: 1, or 2 when the script says that the parent has died of
 * it; anything else: it cannot be brought.
 */
async function bring(runtime, {kind, queue, parent, child, policy, last}, byDeath) {
  const key = (type) => runtime.keys.name(type, {queue, id: parent});
  const base = runtime.keys.name('base', {queue});
  return kind === 'complete'
    ? await runtime.scripts.runAs(
        'flow_deliver',
        [key('dependencies'), key('processed'), key('job')],
        [child, last, parent, base],
      )
    : await runtime.scripts.runAs(
        byDeath,
        [key('dependencies'), key('failed'), key('unsuccessful'), key('job')],
        [child, last, policy, base, parent],
      );
}

/** One pass over the outbox. What is malformed stays where it is, in nobody's way. */
async function pass(runtime, args, byDeath) {
  const outbox = runtime.keys.name('flow:outbox', args);
  const records = await runtime.send('LRANGE', outbox, 0, positive(args.batch ?? 100, 'batch') - 1);
  let delivered = 0;
  const fallen = [];
  for (const bytes of records) {
    const record = parseRecord(bytes);
    const reply = record === null ? 0 : await bring(runtime, record, byDeath);
    if (reply !== 1 && reply !== 2) continue;
    // By value, not by place: two who deliver at a time take out nothing that the other has not brought.
    await runtime.send('LREM', outbox, 1, bytes);
    ++delivered;
    if (reply === 2) fallen.push([record.queue, record.parent, toJson(record.last)]);
  }
  return {delivered, fallen};
}

export const flowVerbs = {
  async flow_add(runtime, args) {
    try {
      return {ok: await add(runtime, args.queue, args)};
    } catch (error) {
      if (error instanceof FlowError) return {error: error.answer};
      throw error;
    }
  },
  /** The flows that landed, in order. */
  async flow_add_bulk(runtime, args) {
    const done = [];
    for (const flow of args.flows) {
      try {
        done.push(await add(runtime, args.queue, flow));
      } catch (error) {
        if (!(error instanceof FlowError) && error.name !== 'ReplyError') throw error;
      }
    }
    return {ok: done};
  },
  async deliver(runtime, args) {
    return {ok: (await pass(runtime, args, 'flow_fail_deliver')).delivered};
  },
  /** The same, and which parents have died of it. */
  async deliver_deaths(runtime, args) {
    return {ok: await pass(runtime, args, 'flow_death_deliver')};
  },
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
