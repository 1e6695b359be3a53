import { describe, expect, it } from "vitest";
import { base64url, type Received } from "../api/socket";
import type { HubSchema, MethodSchema, Schema } from "../api/types";
import { ageText } from "../ui/age";
import { namespacesOf, search } from "./methods";
import { newRun, type Run, replied, taken } from "./runs";
import { shownOf } from "./shown";
import { threadFrom, treeIn } from "./tree";

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
  const told = (...items: (Received | null)[]): Run =>
    items.reduce((run, item) => taken(run, item), newRun(1, "m"));

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

  it("is over when the connection is lost, unless it is durable", () => {
    const plain = newRun(1, "m", { isDurable: false });
    expect(taken(plain, null).status).toBe("lost");
    expect(told(question, null)).toMatchObject({ status: "running", isLost: true, questions: [] });
  });

  it("asks once what is asked again after the connection was lost", () => {
    const again = told(question, null, { ...question });
    expect(again.questions.length).toBe(1);
    expect(again.items.length).toBe(1);
  });

  it("counts the elements of its result, and keeps the time that is left for a question", () => {
    const data: Received = { type: "data", content_type: "", content: 1, metadata };
    expect(told(data, data).elements).toBe(2);
    const limited = {
      ...question,
      timeout_ms: 30_000,
      metadata: { ...metadata, timestamp: 100 },
    } as Received;
    expect(taken(newRun(1, "m"), limited, 110_000).questions[0]?.deadline).toBe(130_000);
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

describe("what a run shows", () => {
  const data = (content: unknown): Received => ({ type: "data", content }) as Received;

  it("joins the lines of a program, and the pieces of a text", () => {
    const shown = shownOf([
      data({ type: "stdout", line: "one" }),
      data({ type: "stderr", line: "two" }),
      data({ type: "exit", code: 0 }),
      data({ type: "chat_content", cone_id: "c", content: "Hel" }),
      data({ type: "chat_content", cone_id: "c", content: "lo" }),
      data({ type: "content", text: "!" }),
    ]);
    expect(shown.map((one) => one.kind)).toEqual(["terminal", "item", "text"]);
    expect(shown[0]).toMatchObject({ lines: [{ line: "one" }, { stream: "stderr", line: "two" }] });
    expect(shown[2]).toMatchObject({ text: "Hello!" });
  });

  it("leaves alone what only looks like that", () => {
    const odd = [
      { type: "stdout" },
      { type: "toString", text: "x" },
      { type: "tree_data", tree: {} },
      "stdout",
      null,
    ];
    expect(shownOf(odd.map(data)).map((one) => one.kind)).toEqual(odd.map(() => "item"));
  });

  it("shows bytes as files, wherever the schema says that they are", () => {
    const bytes = { type: "string", contentEncoding: "base64" };
    const returns: Schema = {
      type: "object",
      properties: {
        name: { type: "string" },
        pages: { type: "array", items: { anyOf: [bytes, { type: "null" }] } },
        inside: { $ref: "#/$defs/Inside" },
      },
      $defs: { Inside: { type: "object", additionalProperties: bytes } },
    };
    const given = { name: "AAAA", pages: ["AAAA", null], inside: { cover: "AAE=" }, more: "AAAA" };
    const [shown] = shownOf([data(given)], returns);
    expect(shown).toMatchObject({
      kind: "content",
      contents: [
        { kind: "json", value: { name: "AAAA", pages: ["[a file of 3 bytes]", null], more: "AAAA" } },
        { kind: "file", name: "pages-1.bin", data: "AAAA" },
        { kind: "file", name: "cover.bin", data: "AAE=" },
      ],
    });
    const wrapped: Schema = { type: "object", properties: { result: bytes } };
    for (const schema of [bytes, wrapped])
      expect(shownOf([data("AAAA")], schema, "scan")).toMatchObject([
        { contents: [{ kind: "file", name: "scan.bin" }] },
      ]);
    expect(shownOf([data("no base64!")], bytes)).toMatchObject([{ kind: "item" }]);
  });
});

describe("a tree", () => {
  const node = (children: string[], content = ""): unknown => ({
    parent: null,
    children,
    data: { type: "text", content },
  });
  const tree = (nodes: Record<string, unknown>, root = "a"): ReturnType<typeof treeIn> =>
    treeIn({ type: "tree_data", tree: { id: "t", root, nodes, state: "active" } });

  it("is threads that part into branches", () => {
    const made = tree({
      a: node(["b"]),
      b: node(["c", "d"]),
      c: node([], "left"),
      d: node(["e"]),
      e: node([]),
    });
    if (made === null) throw new Error("there is a tree");
    const whole = threadFrom(made, "a");
    expect(whole.nodes.map((one) => one.id)).toEqual(["a", "b"]);
    expect(whole.branches).toEqual(["c", "d"]);
    expect(threadFrom(made, "d").nodes.map((one) => one.id)).toEqual(["d", "e"]);
    expect(made.nodes.get("c")?.text).toBe("left");
  });

  it("ends where it comes back to itself, or to what is not there", () => {
    const made = tree({ a: node(["b"]), b: node(["a"]), c: node(["gone"]) });
    if (made === null) throw new Error("there is a tree");
    expect(threadFrom(made, "a").nodes.map((one) => one.id)).toEqual(["a", "b"]);
    expect(threadFrom(made, "c").nodes.map((one) => one.id)).toEqual(["c"]);
    expect(threadFrom(made, "gone").nodes).toEqual([]);
  });

  it("is none without its root", () => {
    expect(tree({ a: node([]) }, "x")).toBeNull();
    expect(treeIn({ type: "tree_skeleton", skeleton: "t" })).toBeNull();
    const skeleton = {
      id: "t",
      root: "a",
      state: "active",
      next: "1",
      nodes: { a: { children: [], node_type: "external" } },
    };
    expect(treeIn({ type: "tree_skeleton", skeleton })).toMatchObject({ hasMore: true });
  });
});
