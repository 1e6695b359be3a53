/**
 * Reading a JSON Schema for a form: what kind of field shows a value, and what it begins with.
 *
 * All of it is about the schemas that tools have. What is beyond it (`not`, `if`, `patternProperties`)
 * is left to the server, which checks everything again, and to the raw JSON that every form can switch to.
 */
import type { Schema } from "../api/types";

/** Text in a field that is no value of its kind; a form with one cannot be sent. */
export class Unreadable {
  constructor(
    readonly text: string,
    readonly reason: string,
  ) {}
}

export interface Choice {
  value: unknown;
  label: string;
  description?: string;
}

export type Kind =
  | { is: "const"; value: unknown }
  | { is: "choice"; choices: Choice[] }
  | { is: "choices"; choices: Choice[] }
  | { is: "boolean" }
  | { is: "number"; whole: boolean }
  | { is: "decimal"; number: Schema }
  | { is: "string" }
  | { is: "file" }
  | { is: "array"; items: Schema }
  | { is: "tuple"; items: Schema[] }
  | { is: "object"; properties: [string, Schema][]; required: Set<string> }
  | { is: "map"; values: Schema }
  | { is: "union"; variants: Schema[] }
  | { is: "null" }
  | { is: "any" };

const MOST_STEPS = 32;

/** The schema itself: references followed, and what `allOf` says taken together. */
export function resolve(schema: Schema, root: Schema): Schema {
  let found = schema;
  for (let step = 0; found.$ref !== undefined && step < MOST_STEPS; step += 1) {
    const { $ref, ...beside } = found;
    found = { ...lookUp($ref, root), ...beside };
  }
  if (found.allOf === undefined) return found;
  const { allOf, ...rest } = found;
  return allOf.map((part) => resolve(part, root)).reduce(together, rest);
}

export function lookUp(ref: string, root: Schema): Schema {
  if (!ref.startsWith("#")) return {};
  let found: unknown = root;
  for (const part of ref.slice(1).split("/").filter(Boolean)) {
    const name = decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~");
    found = (found as Record<string, unknown> | undefined)?.[name];
  }
  return isObject(found) ? (found as Schema) : {};
}

function together(a: Schema, b: Schema): Schema {
  return {
    ...b,
    ...a,
    ...(a.properties || b.properties ? { properties: { ...b.properties, ...a.properties } } : {}),
    ...(a.required || b.required ? { required: [...(b.required ?? []), ...(a.required ?? [])] } : {}),
  };
}

/** Whether null is a value of it, and the schema of the others. */
export function withoutNull(schema: Schema, root: Schema): { nullable: boolean; schema: Schema } {
  const own = resolve(schema, root);
  if (Array.isArray(own.type) && own.type.includes("null")) {
    const types = own.type.filter((type) => type !== "null");
    return { nullable: true, schema: { ...own, type: types.length === 1 ? types[0] : types } as Schema };
  }
  for (const key of ["anyOf", "oneOf"] as const) {
    const variants = own[key];
    if (variants === undefined) continue;
    const left = variants.filter((variant) => resolve(variant, root).type !== "null");
    if (left.length === variants.length) continue;
    const { [key]: _, ...beside } = own;
    const [only] = left;
    if (left.length === 1 && only !== undefined) {
      return { nullable: true, schema: { ...resolve(only, root), ...beside } };
    }
    return { nullable: true, schema: { ...beside, [key]: left } };
  }
  return { nullable: false, schema: own };
}

/** How patterns of midcall and of pydantic begin, by which a decimal comes as text. */
const DECIMAL = /^\^(\[\+-\]\?\(|\(\?!\^\[-\+\.\]\*\$\))/;

/** How a value of this schema (resolved, and without null) is edited. */
export function kindOf(schema: Schema, root: Schema): Kind {
  if (schema.const !== undefined) return { is: "const", value: schema.const };
  const choices = choicesOf(schema, root);
  if (choices !== null) {
    const [only] = choices;
    return choices.length === 1 && only ? { is: "const", value: only.value } : { is: "choice", choices };
  }
  const variants = schema.anyOf ?? schema.oneOf;
  const [number, text, more] = variants ?? [];
  if (number?.type === "number" && text?.type === "string" && DECIMAL.test(text.pattern ?? "") && !more) {
    return { is: "decimal", number };
  }
  if (variants !== undefined && schema.properties === undefined) return { is: "union", variants };
  if (Array.isArray(schema.type)) {
    return { is: "union", variants: schema.type.map((type) => ({ ...schema, type })) };
  }
  switch (schema.type ?? guessed(schema)) {
    case "boolean":
      return { is: "boolean" };
    case "integer":
      return { is: "number", whole: true };
    case "number":
      return { is: "number", whole: false };
    case "string":
      return { is: isFile(schema) ? "file" : "string" };
    case "null":
      return { is: "null" };
    case "array":
      return arrayKind(schema, root);
    case "object":
      return objectKind(schema);
    default:
      return { is: "any" };
  }
}

const BYTES = new Set(["binary", "byte", "base64", "base64url"]);

/** Whether a value is a file to choose: bytes, which JSON has as base64. */
export const isFile = (schema: Schema): boolean =>
  isBytes(schema) || (schema.type === "string" && BYTES.has(schema.format ?? ""));

/** Whether a value is certainly bytes; one of `format: binary` alone may be any text. */
export const isBytes = ({ type, contentEncoding }: Schema): boolean =>
  type === "string" && /^base64(url)?$/.test(contentEncoding ?? "");

function guessed(schema: Schema): string | undefined {
  if (schema.properties !== undefined) return "object";
  return schema.items !== undefined || schema.prefixItems !== undefined ? "array" : undefined;
}

function arrayKind(schema: Schema, root: Schema): Kind {
  if (schema.prefixItems !== undefined) return { is: "tuple", items: schema.prefixItems };
  const items = isObject(schema.items) ? (schema.items as Schema) : {};
  const choices = choicesOf(resolve(items, root), root);
  return choices === null ? { is: "array", items } : { is: "choices", choices };
}

function objectKind(schema: Schema): Kind {
  const properties = Object.entries(schema.properties ?? {});
  if (properties.length > 0) return { is: "object", properties, required: new Set(schema.required ?? []) };
  if (isObject(schema.additionalProperties))
    return { is: "map", values: schema.additionalProperties as Schema };
  return schema.additionalProperties === false
    ? { is: "object", properties: [], required: new Set() }
    : { is: "any" };
}

/** The values that it is one of, in any of the ways in which a schema says so. */
export function choicesOf(schema: Schema, root: Schema): Choice[] | null {
  if (schema.enum !== undefined) {
    return schema.enum.map((value, n) => ({ value, label: schema.enumNames?.[n] ?? textOf(value) }));
  }
  const variants = (schema.oneOf ?? schema.anyOf)?.map((variant) => resolve(variant, root));
  if (variants === undefined || !variants.every((variant) => variant.const !== undefined)) return null;
  return variants.map(({ const: value, title, description }) => ({
    value,
    label: title ?? textOf(value),
    ...(description === undefined ? {} : { description }),
  }));
}

const MOST_PARTS = 2000;
const DEEPEST = 20;

/**
 * What a form begins with; `undefined` for what is left out. So is what has more parts than `left`, or is deeper
 * than a person fills in: a schema may need itself.
 */
export function initial(
  schema: Schema,
  root: Schema,
  required: boolean,
  left = { parts: MOST_PARTS },
  depth = 0,
): unknown {
  left.parts -= 1;
  if (left.parts < 0 || depth > DEEPEST) return undefined;
  const { nullable, schema: own } = withoutNull(schema, root);
  if (own.default !== undefined) return structuredClone(own.default);
  if (!required) return undefined;
  if (nullable) return null;
  const kind = kindOf(own, root);
  switch (kind.is) {
    case "const":
      return kind.value;
    case "null":
      return null;
    case "object":
      return initialObject(kind, root, left, depth + 1);
    case "map":
      return {};
    case "array":
    case "choices":
      return [];
    case "tuple":
      return kind.items.map((item) => initial(item, root, true, left, depth + 1));
    case "union":
      return initial(kind.variants[0] ?? {}, root, true, left, depth + 1);
    default:
      return undefined;
  }
}

function initialObject(
  kind: Extract<Kind, { is: "object" }>,
  root: Schema,
  left: { parts: number },
  depth: number,
): Record<string, unknown> {
  const made: Record<string, unknown> = {};
  for (const [name, property] of kind.properties) {
    const value = initial(property, root, kind.required.has(name), left, depth);
    if (value !== undefined) made[name] = value;
  }
  return made;
}

/** What a variant of a union is called. */
export function variantName(variant: Schema, root: Schema, n: number): string {
  const own = resolve(variant, root);
  if (own.title) return own.title;
  const name = variant.$ref?.split("/").pop();
  if (name) return name;
  if (own.const !== undefined) return textOf(own.const);
  const tag = Object.values(own.properties ?? {}).find((property) => property.const !== undefined);
  if (tag !== undefined) return textOf(tag.const);
  return typeof own.type === "string" ? typeWord(own.type) : `Choice ${n + 1}`;
}

const WORDS: Record<string, string> = {
  string: "Text",
  integer: "Whole number",
  number: "Number",
  boolean: "Yes or no",
  array: "List",
  object: "Object",
  null: "Nothing",
};

export const typeWord = (type: string): string => WORDS[type] ?? type;

/** A name as people write it: `delay_ms` and `flightId` become "Delay ms" and "Flight id". */
export function humanName(name: string): string {
  const words = name
    .replace(/([a-z\d])([A-Z])/g, "$1 $2")
    .replace(/[_-]+/g, " ")
    .trim()
    .toLowerCase();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** The number that a text says, if it says one. */
export function numberIn(text: string): number | undefined {
  const number = Number(text);
  const isNumber = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(text.trim());
  return isNumber && Number.isFinite(number) ? number : undefined;
}

export const textOf = (value: unknown): string => (typeof value === "string" ? value : JSON.stringify(value));

export const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Unreadable);
