import { describe, expect, it } from "vitest";
import type { CallSummary } from "../api/types";
import { newOnes, shortened, titled, waitingIn } from "./waiting";

const call = (id: string, questions: unknown[]): CallSummary =>
  ({
    id,
    method: "m",
    status: "waiting",
    age: 1,
    waiting: true,
    caller: null,
    own: true,
    questions,
  }) as CallSummary;

describe("questions that wait", () => {
  const mine = { key: "k", place: "2", message: "Sure?", link: "/q/x" };

  it("are those that this person can answer", () => {
    const others = { key: "o", place: "3", message: "Else?" };
    const onTheLine = { request_id: "r", message: "Now?", age: 1 };
    expect(waitingIn([call("a", [mine, others, onTheLine])])).toEqual([
      { id: "a 2", method: "m", message: "Sure?" },
    ]);
  });

  it("are told once, and not when the page is opened", () => {
    const now = waitingIn([call("a", [mine])]);
    expect(newOnes(null, now)).toEqual([]);
    expect(newOnes(new Set(), now)).toEqual(now);
    expect(newOnes(new Set(["a 2"]), now)).toEqual([]);
  });

  it("are counted in the title, once", () => {
    expect(titled("Calls · midcall", 2)).toBe("(2) Calls · midcall");
    expect(titled(titled("Calls · midcall", 2), 3)).toBe("(3) Calls · midcall");
    expect(titled("(3) Calls · midcall", 0)).toBe("Calls · midcall");
  });

  it("are told in one short line", () => {
    expect(shortened(`a\n\n  b ${"x".repeat(300)}`)).toMatch(/^a b x{196}…$/);
  });
});
