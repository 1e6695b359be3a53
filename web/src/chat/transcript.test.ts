import { describe, expect, it } from "vitest";
import type { ChatEvent, Elicit, Message } from "../api/types";
import {
  apply,
  callsOf,
  fromMessages,
  questionsOf,
  readAgain,
  type Transcript,
  withAnswer,
} from "./transcript";

const told = (events: ChatEvent[], from: Transcript = []): Transcript => events.reduce(apply, from);

/** Without what is only known as it happens: when it was said, and that it has ended. */
const plain = (transcript: Transcript): unknown[] =>
  transcript.map((entry) => ({ ...entry, time: undefined, closed: undefined }));

const elicit = (callId: string, elicitId: string): Elicit => ({
  type: "plugin_elicit_request",
  sessionId: callId,
  callId,
  toolName: "book",
  elicitId,
  key: "k",
  message: "Which?",
});

const CALLS: ChatEvent = {
  type: "tool_calls",
  calls: [
    { id: "a", name: "book", arguments: { to: "Oslo" } },
    { id: "b", name: "book", arguments: {} },
  ],
};

describe("a transcript", () => {
  it("gathers pieces of text and thoughts", () => {
    const events: ChatEvent[] = [
      { type: "thinking", content: "Hm" },
      { type: "text", content: "Hel" },
      { type: "text", content: "lo" },
    ];
    expect(plain(told(events))).toEqual([{ kind: "assistant", text: "Hello", thinking: "Hm", calls: [] }]);
  });

  it("begins a new text after a round of tools", () => {
    const shown = told([
      { type: "text", content: "Let me look." },
      CALLS,
      { type: "tool_result", callId: "a", toolName: "book", content: "ok", structured: { n: 1 } },
      { type: "tool_error", callId: "b", toolName: "book", message: "full" },
      { type: "text", content: "Done." },
    ]);
    expect(shown.map((entry) => entry.kind)).toEqual(["assistant", "assistant"]);
    expect(callsOf(shown).map((call) => call.status)).toEqual(["done", "failed"]);
  });

  it("shows the questions of several tools, each where its tool stands", () => {
    const shown = told([CALLS, elicit("a", "a:1"), elicit("b", "b:1"), elicit("a", "a:1")]);
    expect(questionsOf(shown).map((one) => one.elicitId)).toEqual(["a:1", "b:1"]);
    const left = withAnswer(shown, elicit("a", "a:1"), { action: "accept", content: { n: 1 } });
    expect(callsOf(left).map((call) => call.status)).toEqual(["running", "waiting"]);
    expect(callsOf(left)[0]?.answered).toEqual([
      { elicitId: "a:1", message: "Which?", action: "accept", content: { n: 1 } },
    ]);
  });

  it("is the same whether it is seen as it happens or read afterwards", () => {
    const messages: Message[] = [
      { role: "user", content: "Hi" },
      {
        role: "assistant",
        content: "Let me look.",
        tool_calls: [
          { id: "a", name: "book", arguments: '{"to": "Oslo"}' },
          { id: "b", name: "book", arguments: "{}" },
        ],
      },
      { role: "tool", content: "ok", tool_call_id: "a" },
    ];
    const pending = [elicit("b", "b:1")];
    const seen = told(
      [
        { type: "text", content: "Let me look." },
        CALLS,
        { type: "tool_result", callId: "a", toolName: "book", content: "ok" },
        ...pending,
      ],
      [{ kind: "user", text: "Hi" }],
    );
    expect(plain(seen)).toEqual(plain(fromMessages(messages, pending)));
    const state: ChatEvent = { type: "conversation_state", conversationId: "c", messages, pending };
    expect(plain(apply(seen, state))).toEqual(plain(seen));
  });

  it("shows what the person did not want as no failure, and what was dropped", () => {
    const shown = told([
      CALLS,
      { type: "tool_error", callId: "a", toolName: "book", message: "no", code: "declined" },
      elicit("b", "b:1"),
      { type: "tool_error", callId: "b", toolName: "book", message: "else", code: "dropped" },
    ]);
    expect(callsOf(shown).map((call) => call.status)).toEqual(["refused", "refused"]);
    expect(callsOf(shown)[1]?.answered).toMatchObject([{ elicitId: "b:1", action: "dropped" }]);
  });

  it("has answers, files and times of calls as the server keeps them", () => {
    const messages: Message[] = [
      { role: "assistant", content: "", tool_calls: [{ id: "a", name: "book", arguments: "{}" }] },
      { role: "tool", content: "Error: no", tool_call_id: "a", is_error: true },
    ];
    const answered = { elicitId: "a:1", message: "Which?", action: "decline" as const };
    const read = fromMessages(messages, [], {
      a: {
        seconds: 2,
        code: "declined",
        answered: { "a:1": answered },
        parts: [{ kind: "image", name: "p.png" }],
      },
    });
    expect(callsOf(read)[0]).toMatchObject({
      status: "refused",
      seconds: 2,
      answered: [answered],
      parts: [{ name: "p.png" }],
    });
    // A state that tells only messages takes nothing away of it.
    const state: ChatEvent = { type: "conversation_state", conversationId: "c", messages, pending: [] };
    expect(callsOf(apply(read, state))).toEqual(callsOf(read));
  });

  it("begins a new text after what was said aside has been answered", () => {
    const messages: Message[] = [
      { role: "assistant", content: "", tool_calls: [{ id: "a", name: "book", arguments: "{}" }] },
      { role: "user", content: "Why?" },
      { role: "assistant", content: "Because." },
    ];
    const asked = fromMessages(messages, [elicit("a", "a:1")]);
    const after = told(
      [
        { type: "tool_result", callId: "a", toolName: "book", content: "ok" },
        { type: "text", content: "Done." },
      ],
      asked,
    );
    expect(after.map((entry) => ("text" in entry ? entry.text : ""))).toEqual([
      "",
      "Why?",
      "Because.",
      "Done.",
    ]);
  });

  it("takes calls that it knows already only once", () => {
    expect(callsOf(told([CALLS, CALLS])).length).toBe(2);
  });

  it("says why a turn ended early, and offers to go on where that may help", () => {
    expect(told([{ type: "complete", reason: "stop" }])).toEqual([]);
    expect(told([{ type: "complete", reason: "stopped" }])[0]).toMatchObject({
      kind: "notice",
      text: "Stopped.",
    });
    const failed = told([{ type: "error", message: "Too many requests", code: "rate", recoverable: true }]);
    expect(failed[0]).toMatchObject({ tone: "error", retry: true });
  });

  it("keeps a question open whose answer was for another one", () => {
    const events: ChatEvent[] = [
      CALLS,
      elicit("a", "a:2"),
      { type: "plugin_session_error", sessionId: "a", callId: "a", error: "ELICIT_MISMATCH", message: "no" },
    ];
    expect(questionsOf(told(events)).length).toBe(1);
    const lost: ChatEvent = {
      type: "plugin_session_error",
      sessionId: "a",
      callId: "a",
      error: "SESSION_NOT_FOUND",
      message: "gone",
    };
    expect(callsOf(told([...events, lost]))[0]).toMatchObject({
      status: "failed",
      error: "gone",
      questions: [],
    });
  });

  it("that is read again keeps what only the page knows", () => {
    const unsent = { kind: "user", text: "again", unsent: "offline" } as const;
    const notice = { kind: "notice", tone: "error", text: "no", retry: true } as const;
    const before: Transcript = [{ kind: "user", text: "Hi" }, notice, unsent];
    const failure = { message: "no", code: "model_error", recoverable: true };
    expect(readAgain(before, [{ kind: "user", text: "Hi" }], failure)).toEqual([
      { kind: "user", text: "Hi" },
      notice,
      unsent,
    ]);
  });

  it("has no notice of a turn when somebody has begun another one", () => {
    const notice = { kind: "notice", tone: "info", text: "Stopped.", retry: false } as const;
    const said: Transcript = [{ kind: "user", text: "Hi" }];
    expect(readAgain([...said, notice], said, null)).toEqual([...said, notice]);
    const more: Transcript = [...said, { kind: "user", text: "And?" }];
    expect(readAgain([...said, notice], more, null)).toEqual(more);
  });

  it("says once how the last turn failed, until it is gone on with", () => {
    const failure = { message: "Too busy", code: "model_error", recoverable: true };
    const said: Transcript = [{ kind: "user", text: "Hi" }];
    const reloaded = readAgain([], said, failure);
    expect(reloaded).toEqual([...said, { kind: "notice", tone: "error", text: "Too busy", retry: true }]);
    expect(readAgain(reloaded, said, failure)).toEqual(reloaded);
    expect(readAgain(reloaded, said, null)).toEqual(said);
  });
});
