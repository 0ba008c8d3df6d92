// The protocol folder, read from disk: all that this speaker knows of EchoMQ.
import {readFileSync, readdirSync, existsSync} from 'node:fs';
import {join, dirname} from 'node:path';
import {fileURLToPath} from 'node:url';

const HERE = dirname(fileURLToPath(import.meta.url));

export class Protocol {
  constructor(folder = join(HERE, '..', '..', '..', 'protocol')) {
    this.folder = folder;
    this.registry = this.json('keys.json');
    this.scripts = new Map(this.registry.scripts.map((script) => [script.name, script]));
  }

  json(path) {
    return JSON.parse(readFileSync(join(this.folder, path), 'utf8'));
  }

  /** The source text of a script that the registry names. */
  scriptText(name) {
    return readFileSync(join(this.folder, this.scripts.get(name).path));
  }

  /** Scenarios of conformance/ (79 canonical ones) or of a folder below it, in order. */
  scenarios(below = '') {
    const folder = join('conformance', below);
    if (!existsSync(join(this.folder, folder))) return [];
    return readdirSync(join(this.folder, folder))
      .filter((file) => file.endsWith('.json'))
      .sort()
      .map((file) => ({file: join(below, file), ...this.json(join(folder, file))}));
  }
}
