// The cache plane: frames `<version><value>` at `ecc:{<table>}:<id>`, and the messages that make others drop theirs.
import {fromBytes, toBytes} from './bytes.js';
import {idOf} from './shapes.js';

const VERSION_BYTES = 14;
const keyOf = (runtime, args) => runtime.keys.name('cache', {...args, id: idOf(args)});

/** Only the number of a version counts: its 11 digits, as bytes. */
export const newer = (a, b) => a.slice(3) > b.slice(3);

export const message = (id, version) => `${id}:${version}`;

export const cacheVerbs = {
  /** Places a value; gives its version. */
  async cache_put(runtime, args) {
    const version = args.version === undefined ? await runtime.mint('VER') : idOf(args, 'version');
    const frame = Buffer.concat([Buffer.from(version), toBytes(args.value)]);
    await runtime.send('SET', keyOf(runtime, args), frame, 'PX', args.ttl_ms);
    return {ok: version};
  },
  /** [value, version], `absent`, or `corrupt` for a frame without a whole version. */
  async cache_get(runtime, args) {
    const frame = await runtime.send('GET', keyOf(runtime, args));
    if (frame === null) return 'absent';
    if (frame.length < VERSION_BYTES) return {error: 'corrupt'};
    return {ok: [fromBytes(frame.subarray(VERSION_BYTES)), frame.subarray(0, VERSION_BYTES).toString('latin1')]};
  },
  /** Tells all who listen to the table's channel; gives their number. */
  async broadcast(runtime, args) {
    const text = message(idOf(args), idOf(args, 'version'));
    return {ok: await runtime.send('PUBLISH', `ecc:{${args.table}}:coh`, text)};
  },
  async coh_message(_, args) {
    return message(args.id, args.version);
  },
  async newer(_, args) {
    return newer(args.a, args.b);
  },
};
