import { describe, expect, it } from "vitest";
import type { RequestType } from "../api/types";
import { fromElicit, fromRequest, toAnswer, yesOrNo } from "./question";

const asked = (request_type: RequestType) => fromRequest({ request_id: "q", request_type });

describe("a question of a method", () => {
  it("of yes or no", () => {
    const type: RequestType = { Confirm: { message: "Sure?", default: false } };
    expect(yesOrNo(asked(type).schema)).toEqual({ name: "confirmed", default: false });
    expect(toAnswer(type, { action: "accept", content: { confirmed: true } })).toEqual({ Confirmed: true });
  });

  it("for text, where a refusal is not a word", () => {
    const type: RequestType = { Prompt: { message: "Name?" } };
    expect(toAnswer(type, { action: "accept", content: { text: "Cancelled" } })).toEqual({
      Text: "Cancelled",
    });
    expect(toAnswer(type, { action: "cancel" })).toBe("Cancelled");
    expect(toAnswer(type, { action: "decline" })).toBe("Declined");
  });

  it("with options, one or several", () => {
    const options = [{ value: "s", label: "Small" }];
    const one: RequestType = { Select: { message: "Size?", options, multi_select: false } };
    const several: RequestType = { Select: { message: "Sizes?", options, multi_select: true } };
    expect(toAnswer(one, { action: "accept", content: { choice: "s" } })).toEqual({ Selected: ["s"] });
    expect(toAnswer(several, { action: "accept", content: { choices: ["s"] } })).toEqual({ Selected: ["s"] });
  });

  it("of an author's own kind, with what it brings along", () => {
    const type: RequestType = { Custom: { type_name: "pick", data: { message: "Which?", flights: [1] } } };
    expect(asked(type)).toMatchObject({ message: "Which?", context: { flights: [1] } });
    expect(toAnswer(type, { action: "accept", content: { id: 1 } })).toEqual({ Custom: { id: 1 } });
  });

  it("that leads to a page", () => {
    const type: RequestType = {
      Custom: { type_name: "url", data: { message: "Sign in", url: "https://x.y" } },
    };
    expect(asked(type)).toMatchObject({ url: "https://x.y", context: null });
    expect(toAnswer(type, { action: "accept" })).toEqual({ Custom: true });
  });
});

describe("a question of the chat", () => {
  const elicit = {
    type: "plugin_elicit_request",
    sessionId: "c",
    callId: "c",
    toolName: "t",
    elicitId: "e",
    key: "k",
    message: 'Which?\n\n--x-model-context: application/json\n{"a":1}',
  } as const;

  it("shows people only what is for them", () => {
    expect(fromElicit(elicit).message).toBe("Which?");
  });

  it("takes its context from the schema where it has none of its own", () => {
    expect(fromElicit({ ...elicit, schema: { "x-model-context": { a: 1 } } }).context).toEqual({ a: 1 });
    expect(fromElicit({ ...elicit, context: {} }).context).toBeNull();
  });

  it("has the limit that its tool has set", () => {
    const until = new Date(Date.now() + 60_000).toISOString();
    expect(fromElicit({ ...elicit, until }).deadline).toBeGreaterThan(performance.now());
    expect(fromElicit(elicit).deadline).toBeNull();
  });
});
