// Expectations of a scenario against what came: the rules of protocol/conformance/README.md, "Comparing".
import {isHex, isObject, toBytes} from './bytes.js';
import {parse} from './ids.js';

const MATCHERS = {
  any: () => true,
  not: (unwanted, actual) => !matches(unwanted, actual),
  repeat: (_, actual, expected) => typeof actual === 'string' && toBytes(expected).equals(toBytes(actual)),
  id_of: (namespace, actual) => namespaceOf(actual) === namespace,
  entry_id: (_, actual) => typeof actual === 'string' && /^[0-9]+-[0-9]+$/.test(actual),
  gt: (bound, actual) => numberOf(actual) !== null && numberOf(actual) > bound,
  set: (wanted, actual) => Array.isArray(actual) && actual.length === wanted.length && hasAll(wanted, actual),
  map: (wanted, actual) => hasFields(wanted, actual, true),
  contains: (wanted, actual) =>
    Array.isArray(wanted) ? Array.isArray(actual) && hasAll(wanted, actual) : hasFields(wanted, actual, false),
};

export function matches(expected, actual) {
  const names = isObject(expected) ? Object.keys(expected) : [];
  if (names.length === 1 && names[0] in MATCHERS) return MATCHERS[names[0]](expected[names[0]], actual, expected);
  if (expected === null || actual === null) return expected === actual;
  if (typeof expected === 'boolean' || typeof actual === 'boolean') return expected === actual;
  if (Array.isArray(expected) || Array.isArray(actual)) {
    return Array.isArray(expected) && Array.isArray(actual) && expected.length === actual.length &&
      expected.every((item, i) => matches(item, actual[i]));
  }
  if (isObject(expected) && !isHex(expected)) return isObject(actual) && hasFields(expected, actual, true);
  if (isObject(actual) && !isHex(actual)) return false;
  if (typeof expected === 'number' || typeof actual === 'number') {
    const [a, b] = [numberOf(expected), numberOf(actual)];
    return a !== null && a === b;
  }
  return toBytes(expected).equals(toBytes(actual));
}

/** The namespace of a branded id; null when the value is none. */
function namespaceOf(value) {
  try {
    return parse(value).namespace;
  } catch {
    return null;
  }
}

/** The number that a value is, or that its text says; null when it is none. */
function numberOf(value) {
  if (typeof value === 'number') return value;
  if (typeof value !== 'string' || value.trim() === '') return null;
  const number = Number(value);
  return Number.isNaN(number) ? null : number;
}

/** Each wanted element has one of its own in the list. */
function hasAll(wanted, list) {
  const left = [...list];
  return wanted.every((one) => {
    const at = left.findIndex((item) => matches(one, item));
    if (at >= 0) left.splice(at, 1);
    return at >= 0;
  });
}

/** A map, or a flat list of fields and values. */
function fieldsOf(value) {
  if (isObject(value)) return Object.entries(value);
  if (!Array.isArray(value) || value.length % 2 !== 0) return null;
  return value.flatMap((name, i) => (i % 2 === 0 ? [[toBytes(name).toString(), value[i + 1]]] : []));
}

function hasFields(wanted, actual, exactly) {
  const fields = fieldsOf(actual);
  if (fields === null || (exactly && fields.length !== Object.keys(wanted).length)) return false;
  return Object.entries(wanted).every(([name, value]) =>
    fields.some(([field, found]) => field === name && matches(value, found)),
  );
}
