// Runs the scripts of the registry: KEYS and ARGV are put together from keys.json by name.
import {createHash} from 'node:crypto';
import {Keys} from './keys.js';

/** A script that this protocol folder, or a verb that this speaker, does not have. */
export class Missing extends Error {
  constructor(what) {
    super(`there is no ${what} here`);
  }
}

export class Scripts {
  constructor(protocol, connection) {
    this.protocol = protocol;
    this.connection = connection;
    this.keys = new Keys(protocol.registry);
    this.texts = new Map();
  }

  /**
   * Runs a script by name. `values` holds the queue and every argument by its name in keys.json; arguments marked
   * `repeated` are lists. `moreKeys`: keys after the fixed ones.
   */
  async run(name, values, moreKeys = []) {
    const entry = this.protocol.scripts.get(name);
    if (entry === undefined) throw new Missing(`script ${name}`);
    const keys = entry.keys.map((type) => this.keys.name(type, values)).concat(moreKeys);
    return this.evaluate(name, keys, this.arguments(entry, values));
  }

  /** Runs a script with KEYS and ARGV put together by the caller: those whose lists the registry does not describe. */
  async runAs(name, keys, argv) {
    if (!this.protocol.scripts.has(name)) throw new Missing(`script ${name}`);
    return this.evaluate(name, keys, argv);
  }

  arguments(entry, values) {
    const queue = {base: () => this.keys.name('base', values), row_prefix: () => this.keys.name('base', values) + 'job:'};
    const single = entry.argv.filter((argument) => !argument.repeated);
    const repeated = entry.argv.filter((argument) => argument.repeated);
    const out = [];
    for (const {name, optional} of single) {
      const value = values[name] ?? queue[name]?.();
      if (value === undefined && !optional) throw new Error(`${entry.name} needs ${name}`);
      out.push(value);
    }
    // What is optional and not given is left away at the end, and empty before something that is given.
    while (out.length > 0 && out[out.length - 1] === undefined) out.pop();
    // Repeated arguments follow as id, token, id, token...
    for (let i = 0; repeated.length > 0 && i < values[repeated[0].name].length; ++i) {
      for (const {name} of repeated) out.push(values[name][i]);
    }
    return out.map((value) => value ?? '');
  }

  /** EVALSHA; a server that does not know the script yet is given its text. */
  async evaluate(name, keys, argv) {
    if (!this.texts.has(name)) {
      const text = this.protocol.scriptText(name);
      this.texts.set(name, {text, sha: createHash('sha1').update(text).digest('hex')});
    }
    const {text, sha} = this.texts.get(name);
    const run = () => this.connection.send('EVALSHA', sha, keys.length, ...keys, ...argv);
    try {
      return await run();
    } catch (error) {
      if (!error.message.startsWith('NOSCRIPT')) throw error;
    }
    await this.connection.send('SCRIPT', 'LOAD', text);
    return run();
  }
}
