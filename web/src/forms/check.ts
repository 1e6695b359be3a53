/** Checks a value against a schema, as far as `schema` reads it, in words for the person who filled the form. */
import type { Schema } from "../api/types";
import { isSimplePattern } from "./bounds";
import { choicesOf, isObject, kindOf, numberIn, resolve, Unreadable, withoutNull } from "./schema";

/** What is wrong, and where: names and positions joined by dots, empty for the whole. */
export interface Fault {
  path: string;
  message: string;
}

const MOST_STEPS = 5000;

/** What is wrong with a value, as far as that can be said in so many steps; the server checks it all again. */
export function check(
  schema: Schema,
  root: Schema,
  value: unknown,
  path = "",
  left = { steps: MOST_STEPS },
): Fault[] {
  left.steps -= 1;
  if (left.steps < 0) return [];
  if (value instanceof Unreadable) return [{ path, message: value.reason }];
  const { nullable, schema: own } = withoutNull(schema, root);
  if (value === null && nullable) return [];
  const kind = kindOf(own, root);
  const fault = (message: string): Fault[] => [{ path, message }];
  switch (kind.is) {
    case "const":
      return same(value, kind.value) ? [] : fault(`Must be ${JSON.stringify(kind.value)}`);
    case "choice":
      return kind.choices.some((choice) => same(choice.value, value)) ? [] : fault("Choose one");
    case "boolean":
      return typeof value === "boolean" ? [] : fault("Choose yes or no");
    case "number":
      return checkNumber(own, kind.whole, value).flatMap(fault);
    case "decimal":
      return checkNumber(kind.number, false, typeof value === "string" ? numberIn(value) : value).flatMap(
        fault,
      );
    case "string":
      return checkText(own, value).flatMap(fault);
    case "file":
      return typeof value === "string" ? [] : fault("Choose a file");
    case "null":
      return value === null ? [] : fault("Must be nothing");
    case "choices":
    case "array":
      return Array.isArray(value) ? checkList(own, root, value, path, left) : fault("Must be a list");
    case "tuple":
      return Array.isArray(value)
        ? kind.items.flatMap((item, n) => check(item, root, value[n], join(path, n), left))
        : fault("Must be a list");
    case "map":
      return isObject(value)
        ? Object.entries(value).flatMap(([name, one]) =>
            check(kind.values, root, one, join(path, name), left),
          )
        : fault("Must be an object");
    case "object": {
      if (!isObject(value)) return fault("Must be an object");
      return kind.properties.flatMap(([name, property]) => {
        const at = join(path, name);
        if (value[name] !== undefined) return check(property, root, value[name], at, left);
        return kind.required.has(name) ? [{ path: at, message: "Required" }] : [];
      });
    }
    case "union": {
      const tried = kind.variants.map((variant) => check(variant, root, value, path, left));
      if (tried.some((faults) => faults.length === 0)) return [];
      return tried.sort((a, b) => depth(b) - depth(a) || a.length - b.length)[0] ?? [];
    }
    case "any":
      return [];
  }
}

/** The faults of the variant that fits best are those that lie deepest. */
const depth = (faults: Fault[]): number =>
  Math.max(0, ...faults.map((fault) => fault.path.split(".").length));

function checkNumber(schema: Schema, whole: boolean, value: unknown): string[] {
  if (typeof value !== "number" || !Number.isFinite(value))
    return [whole ? "Must be a whole number" : "Must be a number"];
  if (whole && !Number.isInteger(value)) return ["Must be a whole number"];
  if (whole && !Number.isSafeInteger(value)) return [`Must not be beyond ${Number.MAX_SAFE_INTEGER} here`];
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf } = schema;
  if (minimum !== undefined && value < minimum) return [`Must be ${minimum} or more`];
  if (maximum !== undefined && value > maximum) return [`Must be ${maximum} or less`];
  if (exclusiveMinimum !== undefined && value <= exclusiveMinimum)
    return [`Must be more than ${exclusiveMinimum}`];
  if (exclusiveMaximum !== undefined && value >= exclusiveMaximum)
    return [`Must be less than ${exclusiveMaximum}`];
  if (multipleOf && Math.abs(value / multipleOf - Math.round(value / multipleOf)) > 1e-9) {
    return [`Must be a multiple of ${multipleOf}`];
  }
  return [];
}

const FORMATS: Record<string, [RegExp, string]> = {
  email: [/^[^\s@]+@[^\s@]+$/, "Must be an e-mail address"],
  uri: [/^[a-z][a-z\d+.-]*:\S+$/i, "Must be an address, as https://example.com"],
  date: [/^\d{4}-\d{2}-\d{2}$/, "Must be a date, as 2030-12-31"],
  "date-time": [/^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}/i, "Must be a date and a time, as 2030-12-31T10:00:00Z"],
  time: [/^\d{2}:\d{2}/, "Must be a time, as 10:30"],
  duration: [/^[+-]?P(?=\d|T\d)[\d.YMWDTHS]+$/i, "Must be a duration, as PT1H30M"],
  uuid: [/^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/i, "Must be a UUID"],
};

function checkText(schema: Schema, value: unknown): string[] {
  if (typeof value !== "string") return ["Must be text"];
  const length = [...value].length;
  if (schema.minLength !== undefined && length < schema.minLength) {
    return [schema.minLength === 1 ? "Required" : `Must have ${schema.minLength} characters or more`];
  }
  if (schema.maxLength !== undefined && length > schema.maxLength) {
    return [`Must have ${schema.maxLength} characters or fewer`];
  }
  if (pattern(schema.pattern ?? "")?.test(value) === false) {
    return [`Must match ${schema.pattern}`];
  }
  const format = FORMATS[schema.format ?? ""];
  return format !== undefined && !format[0].test(value) ? [format[1]] : [];
}

function pattern(source: string): RegExp | null {
  if (!isSimplePattern(source)) return null; // it could take for ever here: the server knows
  try {
    return new RegExp(source, "u");
  } catch {
    return null; // of another dialect: the server knows
  }
}

function checkList(
  schema: Schema,
  root: Schema,
  value: unknown[],
  path: string,
  left: { steps: number },
): Fault[] {
  const { minItems, maxItems } = schema;
  if (minItems !== undefined && value.length < minItems) {
    return [{ path, message: minItems === 1 ? "At least one is needed" : `At least ${minItems} are needed` }];
  }
  if (maxItems !== undefined && value.length > maxItems)
    return [{ path, message: `At most ${maxItems} are allowed` }];
  if (schema.uniqueItems && new Set(value.map((one) => JSON.stringify(one))).size < value.length) {
    return [{ path, message: "No two may be the same" }];
  }
  const items = isObject(schema.items) ? (schema.items as Schema) : {};
  const choices = choicesOf(resolve(items, root), root);
  return value.flatMap((one, n) => {
    if (choices?.some((choice) => same(choice.value, one))) return [];
    if (one === undefined) return [{ path: join(path, n), message: "Required" }];
    return check(items, root, one, join(path, n), left);
  });
}

export const join = (path: string, part: string | number): string =>
  path ? `${path}.${part}` : String(part);

export const same = (a: unknown, b: unknown): boolean =>
  a === b || (typeof a === "object" && JSON.stringify(a) === JSON.stringify(b));
