import { describe, expect, it } from "vitest";
import type { Schema } from "../api/types";
import { check } from "./check";
import { humanName, initial, kindOf, resolve, Unreadable } from "./schema";

const faults = (schema: Schema, value: unknown): string[] =>
  check(schema, schema, value).map(({ path, message }) => `${path}: ${message}`);

const PERSON: Schema = {
  type: "object",
  $defs: {
    Address: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    Size: { enum: ["s", "m"] },
  },
  properties: {
    name: { type: "string", minLength: 2 },
    age: { type: "integer", minimum: 0, maximum: 150 },
    email: { type: "string", format: "email" },
    address: { $ref: "#/$defs/Address" },
    sizes: { type: "array", items: { $ref: "#/$defs/Size" }, minItems: 1 },
    nick: { anyOf: [{ type: "string" }, { type: "null" }], default: null },
    extra: { anyOf: [{ type: "integer" }, { $ref: "#/$defs/Address" }] },
    tags: { type: "object", additionalProperties: { type: "number" } },
    pair: { type: "array", prefixItems: [{ type: "integer" }, { type: "string" }] },
  },
  required: ["name", "address", "sizes"],
};

describe("a form", () => {
  it("begins with defaults and with what must be there", () => {
    expect(initial(PERSON, PERSON, true)).toEqual({ address: {}, sizes: [], nick: null });
  });

  it("takes what fits", () => {
    const value = {
      name: "Ada",
      age: 36,
      address: { city: "London" },
      sizes: ["m"],
      nick: null,
      extra: { city: "Turin" },
      tags: { a: 1.5 },
      pair: [1, "x"],
    };
    expect(faults(PERSON, value)).toEqual([]);
  });

  it("says what is wrong, and where", () => {
    const value = {
      name: "A",
      age: 1.5,
      email: "nobody",
      address: {},
      sizes: [],
      extra: { city: 7 },
      tags: { a: "x" },
      pair: ["1", "x"],
    };
    expect(faults(PERSON, value)).toEqual([
      "name: Must have 2 characters or more",
      "age: Must be a whole number",
      "email: Must be an e-mail address",
      "address.city: Required",
      "sizes: At least one is needed",
      "extra.city: Must be text",
      "tags.a: Must be a number",
      "pair.0: Must be a whole number",
    ]);
  });

  it("does not take text that could not be read", () => {
    const schema: Schema = { type: "object", properties: { n: { type: "number" } } };
    expect(faults(schema, { n: new Unreadable("x1", "Must be a number") })).toEqual(["n: Must be a number"]);
  });

  it.each<[Schema, unknown, string[]]>([
    [{ type: "number", exclusiveMinimum: 0 }, 0, [": Must be more than 0"]],
    [{ type: "number", multipleOf: 0.1 }, 0.3, []],
    [{ type: "string", pattern: "^a+$" }, "b", [": Must match ^a+$"]],
    [{ type: "string", pattern: "(?<bad" }, "b", []],
    [{ type: ["string", "null"] }, null, []],
    [{ type: ["string", "integer"] }, 3, []],
    [{ const: 3 }, 4, [": Must be 3"]],
    [{ type: "array", uniqueItems: true, items: { type: "integer" } }, [1, 1], [": No two may be the same"]],
    [{}, { any: "thing" }, []],
  ])("checks %j against %j", (schema, value, expected) => {
    expect(faults(schema, value)).toEqual(expected);
  });

  it("follows references, also those that lead back", () => {
    const schema: Schema = {
      $ref: "#/$defs/Node",
      $defs: {
        Node: {
          type: "object",
          properties: { next: { anyOf: [{ $ref: "#/$defs/Node" }, { type: "null" }] } },
        },
      },
    };
    expect(kindOf(resolve(schema, schema), schema).is).toBe("object");
    expect(faults(schema, { next: { next: { next: 3 } } })).toEqual(["next.next.next: Must be an object"]);
    expect(resolve({ $ref: "#/$defs/None" }, schema)).toEqual({});
  });

  it("reads choices however they are written", () => {
    const titled: Schema = { oneOf: [{ const: "a", title: "First" }, { const: "b" }] };
    const named: Schema = { enum: ["a", "b"], enumNames: ["First", "b"] };
    const labels = (schema: Schema): unknown => {
      const kind = kindOf(schema, schema);
      return kind.is === "choice" ? kind.choices.map((choice) => choice.label) : kind;
    };
    expect(labels(titled)).toEqual(["First", "b"]);
    expect(labels(named)).toEqual(["First", "b"]);
  });

  it("writes names as people do", () => {
    expect(["delay_ms", "flightId", "x"].map(humanName)).toEqual(["Delay ms", "Flight id", "X"]);
  });

  it("takes a decimal as the digits that were written", () => {
    const price: Schema = {
      anyOf: [
        { type: "number", minimum: 0 },
        { type: "string", pattern: "^[+-]?(\\d+)$" },
      ],
    };
    const width: Schema = { anyOf: [{ type: "number" }, { type: "string", pattern: "^auto$" }] };
    expect(kindOf(width, width).is).toBe("union");
    expect(kindOf(price, price).is).toBe("decimal");
    expect(["1.50", "0.1", 2].flatMap((value) => faults(price, value))).toEqual([]);
    expect(faults(price, "1,5")).toEqual([": Must be a number"]);
    expect(faults(price, "-0.1")).toEqual([": Must be 0 or more"]);
  });
});
