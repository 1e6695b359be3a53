import { describe, expect, it } from "vitest";
import { base64url, type Received } from "../api/socket";
import type { HubSchema, MethodSchema } from "../api/types";
import { ageText } from "../calls/CallsPage";
import { namespacesOf, search } from "./methods";
import { newRun, type Run, replied, taken } from "./runs";

const method = (name: string, description: string): MethodSchema => ({
  name,
  description,
  params: {},
  streaming: false,
  interactive: false,
});

const HUB: HubSchema = {
  name: "outer",
  description: "",
  version: "1",
  activations: [
    { namespace: "echo", description: "", version: "1", methods: [method("echo.once", "Say it back.")] },
  ],
  hubs: [
    {
      name: "inner",
      namespace: "nested",
      description: "",
      version: "1",
      activations: [
        {
          namespace: "files",
          description: "",
          version: "1",
          methods: [method("files.delete", "Delete items.")],
        },
      ],
      hubs: [],
    },
  ],
};

describe("the methods of a hub", () => {
  const names = (text: string): string[] =>
    search(namespacesOf(HUB), text).flatMap((one) => one.methods.map((each) => each.name));

  it("have the name by which they are called, also in nested hubs", () => {
    expect(names("")).toEqual(["echo.once", "nested.files.delete"]);
  });

  it("are found by what is said of them", () => {
    expect(names("BACK once")).toEqual(["echo.once"]);
    expect(names("nothing")).toEqual([]);
  });
});

describe("a run", () => {
  const metadata = { provenance: [], plexus_hash: "", timestamp: 0 };
  const question: Received = {
    type: "request",
    request_id: "q",
    request_type: { Confirm: { message: "Sure?" } },
    metadata,
  };
  const told = (...items: (Received | null)[]): Run => items.reduce(taken, newRun(1, "m", {}));

  it("asks until it is answered or the question is withdrawn", () => {
    expect(told(question).questions.length).toBe(1);
    expect(replied(told(question), "q", "decline")).toMatchObject({ questions: [] });
    const withdrawn: Received = { type: "request_cancelled", request_id: "q", reason: "timed out", metadata };
    expect(told(question, withdrawn).questions).toEqual([]);
  });

  it("fails with an error, and is over with done", () => {
    const error: Received = {
      type: "error",
      message: "no",
      code: "tool_error",
      recoverable: false,
      metadata,
    };
    const over = told(question, error, { type: "done", metadata });
    expect(over).toMatchObject({ status: "failed", questions: [] });
    expect(over.ended).not.toBeNull();
  });

  it("is over when the line is lost", () => {
    expect(told(null).status).toBe("lost");
  });
});

describe("small things", () => {
  it("tells ages in two units", () => {
    expect([3.9, 185, 93_600, 7200].map(ageText)).toEqual(["3 s", "3 min 5 s", "1 d 2 h", "2 h 0 min"]);
  });

  it("writes a key so that a WebSocket takes it", () => {
    expect(base64url("a?>~ü")).toMatch(/^[\w-]+$/);
  });
});
