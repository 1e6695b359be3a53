/**
 * What of a schema is not tried in this page: a schema may be a stranger's, and a few lines of it can stand for
 * more work than there is time. Such a one is filled in as JSON, and the server checks it, as it does all others.
 */
import type { Schema } from "../api/types";
import { isObject, lookUp } from "./schema";

const MOST_SCHEMAS = 20_000;
const MOST_DEPTH = 100;
const MOST_ALTERNATIVES = 2000;
const LONGEST_PATTERN = 1000;

/** Whether all that one value is held against, with what that refers to, can be counted and is not too much. */
export function isBounded(root: Schema): boolean {
  const counted = new Map<object, number>();
  const count = (schema: unknown, depth: number): number => {
    if (!isObject(schema)) return 0;
    const known = counted.get(schema);
    if (known !== undefined) return known;
    if (depth > MOST_DEPTH) return Number.POSITIVE_INFINITY;
    counted.set(schema, Number.POSITIVE_INFINITY); // until it is known: it may lead to itself
    const { $ref, allOf, anyOf, oneOf } = schema as Schema;
    const beside: unknown[] = [allOf, anyOf, oneOf].flatMap((some) => (Array.isArray(some) ? some : []));
    if (typeof $ref === "string") beside.push(lookUp($ref, root));
    const total = beside.reduce<number>((sum, one) => sum + count(one, depth + 1), 1);
    counted.set(schema, total);
    return total;
  };
  const waiting: [unknown, number][] = [[root, 0]];
  try {
    for (let seen = 0; waiting.length > 0; seen += 1) {
      const [one, depth] = waiting.pop() as [unknown, number];
      if (typeof one !== "object" || one === null) continue;
      if (seen > MOST_SCHEMAS || depth > MOST_DEPTH || count(one, 0) > MOST_ALTERNATIVES) return false;
      for (const inner of Object.values(one)) waiting.push([inner, depth + 1]);
    }
  } catch {
    return false; // a reference that cannot be read
  }
  return true;
}

/**
 * Whether a pattern is quick for any text. A browser goes back and tries again, so that repetitions multiply: one
 * is allowed, of a single character, beside fixed numbers of them.
 */
export function isSimplePattern(source: string): boolean {
  if (source.length > LONGEST_PATTERN) return false;
  const atoms = source.replace(/\\.|\[(?:\\.|[^\]\\])*\]/gs, "a").replaceAll("(?", "(");
  return !/\)[*+?{]/.test(atoms) && (atoms.match(/[*+?]|\{\d*,\d*\}/g) ?? []).length <= 1;
}
