// A client of the runtime: connection, scripts, ids. What the verbs work with.
import {randomUUID} from 'node:crypto';
import {Connection, Subscriber} from './connection.js';
import {Minter} from './ids.js';
import {PushConnection} from './resp3.js';
import {Scripts} from './scripts.js';

const NODE_LEASE_MS = 3600 * 1000; // longer than any run of this program, so nothing is renewed

export class Runtime {
  static async open(url, protocol, {owner = `speaker-${randomUUID()}`} = {}) {
    const runtime = new Runtime();
    runtime.url = url;
    runtime.protocol = protocol;
    runtime.owner = owner;
    runtime.tables = new Map(); // open cache tables by name
    runtime.version = protocol.registry.wire_version;
    runtime.connection = await Connection.open(url, runtime.version);
    runtime.scripts = new Scripts(protocol, runtime.connection);
    runtime.keys = runtime.scripts.keys;
    return runtime;
  }

  send(...command) {
    return this.connection.send(...command);
  }

  run(script, values, moreKeys) {
    return this.scripts.run(script, values, moreKeys);
  }

  /**
   * A fresh id, where `above` is given above all of that Unix millisecond. The first one leases a node id, so that no
   * other runtime mints the same.
   */
  async mint(namespace, above = null) {
    this.minter ??= this.run('node_lease', {owner: this.owner, lease_ms: NODE_LEASE_MS, grace_ms: 1000}).then(
      ([node]) => new Minter(node),
    );
    const minter = await this.minter;
    if (above !== null) minter.rise(above);
    return minter.mint(namespace);
  }

  subscriber(lost) {
    return Subscriber.open(this.url, this.version, lost);
  }

  /** A RESP3 connection: commands and pushes. */
  pushConnection() {
    return PushConnection.open(this.url, this.version);
  }

  async close() {
    for (const table of this.tables.values()) table.close();
    const minter = await this.minter;
    if (minter) await this.run('node_release', {owner: this.owner, node: minter.node});
    this.connection.close();
  }
}
