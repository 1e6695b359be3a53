// @vitest-environment happy-dom
import { render, screen } from "@testing-library/react";
import { describe, expect, it } from "vitest";
import type { Schema } from "../api/types";
import { isBounded, isSimplePattern } from "./bounds";
import { check } from "./check";
import { SchemaForm } from "./SchemaForm";
import { initial } from "./schema";

const ref = (name: string): Schema => ({ $ref: `#/$defs/${name}` });

/** Each level names the next one twice: there are 2^levels ways down. */
function tower(key: "anyOf" | "allOf" | "oneOf", levels: number): Schema {
  const defs: Record<string, Schema> = { [`d${levels}`]: { type: "integer" } };
  for (let n = 0; n < levels; n += 1) defs[`d${n}`] = { [key]: [ref(`d${n + 1}`), ref(`d${n + 1}`)] };
  return { type: "object", properties: { a: ref("d0") }, required: ["a"], $defs: defs } as Schema;
}

const node: Schema = { type: "object", properties: { next: ref("node") }, required: ["next"] };
const tree: Schema = {
  type: "object",
  properties: { name: { type: "string" }, children: { type: "array", items: ref("tree") } },
  required: ["name", "children"],
};
const deep = (levels: number): Schema => (levels === 0 ? {} : { properties: { a: deep(levels - 1) } });

describe("a schema of a stranger", () => {
  it.each(["anyOf", "allOf", "oneOf"] as const)("with %s that multiply is not made a form", (key) => {
    expect(isBounded(tower(key, 40))).toBe(false);
    expect(isBounded(tower(key, 3))).toBe(true);
  });

  it.each([
    { $ref: "#" },
    { ...ref("a"), $defs: { a: { anyOf: [ref("a"), { type: "integer" }] } } },
    { ...ref("a"), $defs: { a: { allOf: [ref("b")] }, b: { allOf: [ref("a")] } } },
    { $ref: "#/%" },
    deep(500),
  ])("that leads to itself or cannot be followed is not made a form", (schema) => {
    expect(isBounded(schema as Schema)).toBe(false);
  });

  it("may contain itself further inside", () => {
    expect(isBounded({ ...ref("tree"), $defs: { tree } } as Schema)).toBe(true);
  });

  it("is filled in as JSON if it is not made a form", () => {
    render(<SchemaForm schema={tower("anyOf", 40)} onSubmit={() => {}} actions={null} />);
    expect(screen.getByLabelText("JSON")).toBeTruthy();
  });

  it("begins with something finite, also if it needs itself", () => {
    const root = { ...ref("node"), $defs: { node } } as Schema;
    expect(JSON.stringify(initial(root, root, true)).length).toBeLessThan(1000);
    const wide: Schema = { type: "object", properties: {}, required: [] };
    for (let n = 0; n < 100; n += 1) {
      (wide.properties as Record<string, Schema>)[`p${n}`] = ref("wide");
      wide.required?.push(`p${n}`);
    }
    const wider = { ...ref("wide"), $defs: { wide } } as Schema;
    expect(JSON.stringify(initial(wider, wider, true)).length).toBeLessThan(200_000);
  });

  it("is checked in so many steps, and by the server beyond them", () => {
    const sum: Schema = { type: "object", properties: { of: ref("expr") }, required: ["of"] };
    const expr: Schema = { anyOf: [{ type: "number" }, ref("sum"), ref("product")] };
    const root = { ...ref("expr"), $defs: { expr, sum, product: sum } } as Schema;
    expect(check(root, root, { of: { of: "x" } })).not.toEqual([]);
    let value: unknown = "x";
    for (let n = 0; n < 60; n += 1) value = { of: value };
    expect(check(root, root, value)).toBeDefined(); // 2^60 ways otherwise
  });
});

describe("a pattern of a stranger", () => {
  it.each(["^[a-z]+$", "^\\d{4}-\\d{2}$", "^(red|green)$", "^a\\+b\\?c\\*$", "[*+?]{3}x*", "^(?:a|b)c?$"])(
    "%s is tried at once",
    (pattern) => {
      expect(isSimplePattern(pattern)).toBe(true);
    },
  );

  it.each(["^(a+)+$", "^(a|a)+$", "a*a*a*b", "^(a?){30}a{30}$", "(a|aa){40}", "x+y{2,}"])(
    "%s is left to the server",
    (pattern) => {
      expect(isSimplePattern(pattern)).toBe(false);
    },
  );

  it("cannot hold the page", () => {
    const schema: Schema = { type: "string", pattern: "^(a+)+$" };
    expect(check(schema, schema, `${"a".repeat(60)}!`)).toEqual([]);
    expect(check({ type: "string", pattern: "^b+$" } as Schema, {}, "a")).toHaveLength(1);
  });
});
