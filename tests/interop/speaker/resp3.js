// A RESP3 connection, which takes pushes beside the replies to its own commands.
import {connect} from 'node:net';
import {toBytes} from './bytes.js';
import {Inbox, addressOf, fence} from './connection.js';

class ReplyError extends Error {
  constructor(text) {
    super(text);
    this.name = 'ReplyError';
  }
}

/** Reads whole values from bytes that come in parts. Maps are flat lists, as in RESP2; texts are Buffers. */
class Reader {
  constructor() {
    this.bytes = Buffer.alloc(0);
  }

  feed(bytes) {
    this.bytes = Buffer.concat([this.bytes, bytes]);
  }

  /** {push, value}, or null when the value is not all there yet. */
  next() {
    this.at = 0;
    try {
      const push = this.bytes[0] === '>'.charCodeAt(0);
      const value = this.value();
      this.bytes = this.bytes.subarray(this.at);
      return {push, value};
    } catch (error) {
      if (error instanceof RangeError) return null;
      throw error;
    }
  }

  take(count) {
    if (this.at + count > this.bytes.length) throw new RangeError('more to come');
    this.at += count;
    return this.bytes.subarray(this.at - count, this.at);
  }

  line() {
    const end = this.bytes.indexOf('\r\n', this.at);
    if (end < 0) throw new RangeError('more to come');
    const text = this.bytes.toString('latin1', this.at, end);
    this.at = end + 2;
    return text;
  }

  text(length) {
    const text = this.take(length + 2).subarray(0, length);
    return Buffer.from(text);
  }

  list(count) {
    return Array.from({length: count}, () => this.value());
  }

  value() {
    const line = this.line();
    const [kind, rest] = [line[0], line.slice(1)];
    switch (kind) {
      case '+':
      case '(':
        return Buffer.from(rest, 'latin1');
      case '-':
        return new ReplyError(rest);
      case ':':
      case ',':
        return Number(rest);
      case '#':
        return rest === 't';
      case '_':
        return null;
      case '$':
        return rest === '-1' ? null : this.text(Number(rest));
      case '=':
        return this.text(Number(rest)).subarray(4);
      case '!':
        return new ReplyError(this.text(Number(rest)).toString());
      case '*':
      case '~':
      case '>':
        return rest === '-1' ? null : this.list(Number(rest));
      case '%':
        return this.list(2 * Number(rest));
      default:
        throw new Error(`no RESP3: ${line}`);
    }
  }
}

/** It does not come back when it is lost. */
export class PushConnection extends Inbox {
  static async open(url, version) {
    const {host, port, path, username, password, db} = addressOf(url);
    const connection = new PushConnection();
    connection.pending = [];
    connection.confirmations = [];
    connection.reader = new Reader();
    connection.onInvalidate = () => {};
    connection.onLost = () => {};
    connection.socket = path ? connect({path}) : connect({host, port});
    connection.socket.on('data', (bytes) => connection.read(bytes));
    connection.socket.on('error', () => {}); // 'close' follows
    connection.socket.on('close', () => connection.lost());
    await connection.send('HELLO', 3, ...(password ? ['AUTH', username ?? 'default', password] : []));
    if (db) await connection.send('SELECT', db);
    await fence({callBuffer: (...command) => connection.send(...command)}, version);
    return connection;
  }

  write(command) {
    const parts = command.map(toBytes).flatMap((part) => [`$${part.length}\r\n`, part, '\r\n']);
    this.socket.write(Buffer.concat([`*${command.length}\r\n`, ...parts].map(toBytes)));
  }

  send(...command) {
    if (this.socket.destroyed) return Promise.reject(new Error('the connection is lost'));
    this.write(command);
    return new Promise((resolve, reject) => this.pending.push({resolve, reject}));
  }

  /** Its reply is a push. */
  subscribe(channel) {
    this.write(['SUBSCRIBE', channel]);
    return new Promise((resolve) => this.confirmations.push(resolve));
  }

  read(bytes) {
    this.reader.feed(bytes);
    for (let one = this.reader.next(); one !== null; one = this.reader.next()) {
      if (one.push) this.pushed(one.value);
      else if (one.value instanceof Error) this.pending.shift().reject(one.value);
      else this.pending.shift().resolve(one.value);
    }
  }

  pushed([kind, first, second]) {
    const name = kind.toString();
    if (name === 'message') this.take(second);
    if (name === 'subscribe') this.confirmations.shift()();
    if (name === 'invalidate') this.onInvalidate(first);
  }

  lost() {
    for (const {reject} of this.pending.splice(0)) reject(new Error('the connection is lost'));
    this.onLost();
  }

  close() {
    this.socket.destroy();
  }
}
