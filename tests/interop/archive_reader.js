// Reads the files of an archive as a stranger would, again and again while they grow: node archive_reader.js FOLDER
//
// Each line of standard input asks for one look: `zstd -dc` of every segment, each line of theirs a JSON object. It answers by one line,
// {"lines": number, "looks": number, "first": entry, "last": entry, "values": [...]} (the values of field `k`, for a line "all"), or
// {"fault": text}. A frame that is just being written is no fault: what is before it counts. It ends with its standard input.
import {execFile} from 'node:child_process';
import {readdirSync} from 'node:fs';
import {join} from 'node:path';
import {createInterface} from 'node:readline';

const folder = process.argv[2];
let looks = 0;
let known = 0;

/** What zstd makes of the file, as far as it is whole. */
function unpack(file) {
  return new Promise((resolve, reject) => {
    const options = {encoding: 'utf8', maxBuffer: 1 << 28};
    execFile('zstd', ['-q', '-dc', file], options, (error, text) => {
      if (error && error.code === 'ENOENT') reject(error);
      else resolve({text, whole: !error});
    });
  });
}

const order = (entry) => entry.split('-').map(Number);

async function look(all) {
  const files = readdirSync(folder).filter((name) => name.endsWith('.jsonl.zst')).sort();
  const values = [];
  let first = null;
  let last = null;
  let lines = 0;
  for (const [index, name] of files.entries()) {
    const {text, whole} = await unpack(join(folder, name));
    if (!whole && index + 1 < files.length) return {fault: `${name} is torn, and not the last`};
    const rows = text.split('\n');
    // Behind the last newline there is nothing, or the beginning of a line whose frame is not whole.
    const rest = rows.pop();
    if (whole && rest !== '') return {fault: `${name} ends within a line`};
    for (const row of rows) {
      const record = JSON.parse(row);
      if (last !== null) {
        const [a, b] = [order(last), order(record.entry)];
        if (b[0] < a[0] || (b[0] === a[0] && b[1] <= a[1])) return {fault: `${record.entry} behind ${last}`};
      }
      if (record.ms !== order(record.entry)[0]) return {fault: `${row}: another time than its entry`};
      first ??= record.entry;
      last = record.entry;
      ++lines;
      if (all) values.push(record.fields.find(([field]) => field === 'k')[1]);
    }
  }
  if (lines < known) return {fault: `${lines} lines, and ${known} before`};
  known = lines;
  return {lines, looks: ++looks, first, last, values};
}

for await (const line of createInterface({input: process.stdin})) {
  let answer;
  try {
    answer = await look(line === 'all');
  } catch (error) {
    answer = {fault: error.message};
  }
  process.stdout.write(JSON.stringify(answer) + '\n');
}
