// Connections: one for commands, one for pushes. Each reads the fence before it does anything else.
import Valkey from 'iovalkey';
import {toBytes} from './bytes.js';

export const VERSION_KEY = '{emq}:version';

/** valkey://[user:password@]host:port[/db], redis://..., or unix:///path/of/socket. */
export function addressOf(url) {
  if (url.startsWith('unix://')) return {path: url.slice('unix://'.length)};
  const {hostname, port, username, password, pathname} = new URL(url.replace(/^[a-z]+:/, 'http:'));
  return {
    host: hostname || '127.0.0.1',
    port: Number(port || 6379),
    username: decodeURIComponent(username) || undefined,
    password: decodeURIComponent(password) || undefined,
    db: Number(pathname.slice(1) || 0),
  };
}

function open(url, options) {
  const client = new Valkey({...addressOf(url), lazyConnect: true, maxRetriesPerRequest: null, ...options});
  client.on('error', () => {}); // every command reports its own
  return client;
}

/** Reads the wire version, sets it when it is absent, and throws when it is another one. */
export async function fence(client, version) {
  await client.callBuffer('SET', VERSION_KEY, version, 'NX');
  const stored = await client.callBuffer('GET', VERSION_KEY);
  if (stored?.toString() !== version) throw new Error(`another protocol: ${stored}`);
}

/** A connection for commands. It does not come back when it is lost: its owner hears of it at the next command. */
export class Connection {
  static async open(url, version) {
    const connection = new Connection();
    connection.client = open(url, {retryStrategy: () => null});
    await connection.client.connect();
    await fence(connection.client, version);
    return connection;
  }

  /** Sends a command; parts are texts, numbers, Buffers or {"hex": ...}. Answers Buffers, numbers, null, lists. */
  send(name, ...parts) {
    return this.client.callBuffer(name, ...parts.map(toBytes));
  }

  /** Several commands in one write; their replies in order, an error as an `Error`. */
  async pipeline(commands) {
    const pipeline = this.client.pipeline();
    for (const [name, ...parts] of commands) pipeline.callBuffer(name, ...parts.map(toBytes));
    return (await pipeline.exec()).map(([error, reply]) => error ?? reply);
  }

  close() {
    this.client.disconnect();
  }
}

/** Messages in order, until somebody asks for them. */
export class Inbox {
  constructor() {
    this.waiting = [];
    this.takers = [];
  }

  take(message) {
    const taker = this.takers.shift();
    if (taker) taker(message);
    else this.waiting.push(message);
  }

  /** The next message as a Buffer, or null when none comes in time. */
  next(withinMs) {
    if (this.waiting.length > 0) return Promise.resolve(this.waiting.shift());
    return new Promise((resolve) => {
      const taker = (message) => {
        clearTimeout(timer);
        resolve(message);
      };
      const timer = setTimeout(() => {
        this.takers.splice(this.takers.indexOf(taker), 1);
        resolve(null);
      }, withinMs);
      this.takers.push(taker);
    });
  }
}

/**
 * A connection that takes messages. After a loss it connects again, passes the fence, subscribes again, and counts as
 * live only when that is confirmed.
 */
export class Subscriber extends Inbox {
  /** `lost`: called whenever messages may have been missed. */
  static async open(url, version, lost = () => {}) {
    const subscriber = new Subscriber();
    subscriber.version = version;
    subscriber.channels = new Set();
    subscriber.live = false;
    subscriber.client = open(url, {autoResubscribe: false, retryStrategy: () => 20 + Math.random() * 30});
    subscriber.client.on('messageBuffer', (_, message) => subscriber.take(message));
    subscriber.client.on('close', () => {
      subscriber.live = false;
      lost();
    });
    const ready = new Promise((resolve, reject) => {
      subscriber.client.on('ready', () => subscriber.begin().then(resolve, reject));
    });
    await subscriber.client.connect();
    await ready;
    return subscriber;
  }

  async begin() {
    await fence(this.client, this.version);
    // Only now: a subscribed RESP2 connection takes no such command.
    const id = await this.client.callBuffer('CLIENT', 'ID');
    for (const channel of this.channels) await this.client.subscribe(channel);
    this.id = id;
    this.live = true;
  }

  async subscribe(channel) {
    await this.client.subscribe(channel);
    this.channels.add(channel);
  }

  close() {
    this.client.disconnect();
  }
}
