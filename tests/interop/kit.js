// Runs the conformance kit: node kit.js --url URL [--private] [--base NAME] [--protocol FOLDER] [SCENARIO...]
//
// SCENARIO is a name, or the number of a canonical one. Prints one line a failure and a skip, then the sums. With
// `--private` the server is nobody else's: scenarios may change its memory limit. The exit code is not 0 when a scenario
// failed, was skipped for another reason than that the server has no hash-field TTL or is not private, or is not in the
// folder: a canonical number that has no file, or a SCENARIO that none is called (2, and nothing runs).
import {parseArgs} from 'node:util';
import {Mismatch, Skipped, runScenario} from './speaker/driver.js';
import {Protocol} from './speaker/protocol.js';

const CANONICAL = 79;
/** Scenarios that need hash-field TTL, which Valkey 8 and Redis 7.0 do not have. */
const MAY_BE_SKIPPED = [58, 59];

const {values, positionals} = parseArgs({
  allowPositionals: true,
  options: {url: {type: 'string'}, private: {type: 'boolean'}, base: {type: 'string'}, protocol: {type: 'string'}},
});
if (!values.url) {
  console.error('usage: node kit.js --url URL [--private] [--base NAME] [--protocol FOLDER] [SCENARIO...]');
  process.exit(2);
}
const protocol = new Protocol(values.protocol);
const base = values.base ?? `kit-${process.pid}`;

/** Whether a scenario may be skipped on a server that lacks what it needs. */
const maySkip = ({number, needs = []}) =>
  MAY_BE_SKIPPED.includes(number) || (needs.includes('private') && !values.private);

/** Whether it is among those that were asked for. */
const isWanted = ({name, number}) =>
  positionals.length === 0 || positionals.includes(name) || positionals.includes(String(number));

/** Runs a list of scenarios; gives how many passed, and the names of the others. */
async function runAll(scenarios) {
  const sum = {passed: 0, skipped: [], bad: 0};
  for (const scenario of scenarios) {
    if (!isWanted(scenario)) continue;
    try {
      await runScenario(values.url, protocol, scenario, base, {privateServer: values.private});
      ++sum.passed;
    } catch (error) {
      if (error instanceof Skipped) {
        sum.skipped.push(scenario.name);
        if (!maySkip(scenario)) ++sum.bad;
        console.log(`SKIP ${scenario.file}: ${error.message}`);
      } else {
        ++sum.bad;
        console.log(`FAIL ${scenario.file}: ${error instanceof Mismatch ? error.message : error.stack}`);
      }
    }
  }
  return sum;
}

const canonical = protocol.scenarios();
const own = protocol.scenarios('own');
const called = new Set([...canonical, ...own].flatMap(({name, number}) => number === undefined ? [name] : [name, String(number)]));
const unknown = positionals.filter((one) => !called.has(one));
if (unknown.length > 0) {
  console.log(`NO SCENARIO ${unknown.join(' ')}`);
  process.exit(2);
}
const sums = [await runAll(canonical), await runAll(own)];
console.log(`CONFORMANCE ${sums[0].passed}/${CANONICAL}`);
console.log(`OWN ${sums[1].passed}/${own.length}`);
const skipped = sums.flatMap((sum) => sum.skipped);
if (skipped.length > 0) console.log(`SKIPPED ${skipped.length} (${skipped.join(' ')})`);
const numbers = canonical.map((scenario) => scenario.number);
const absent = Array.from({length: CANONICAL}, (_, i) => i + 1).filter((number) => !numbers.includes(number));
if (absent.length > 0) console.log(`NOT IN THE FOLDER ${absent.length} (${absent.join(' ')})`);
// Who asked for some by name did not ask for the others.
const isWhole = absent.length === 0 || positionals.length > 0;
process.exitCode = sums.some((sum) => sum.bad > 0) || !isWhole ? 1 : 0;
