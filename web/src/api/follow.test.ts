import { describe, expect, it } from "vitest";
import { type Following, follow, RunGone } from "./follow";
import { Refused } from "./http";
import type { ChatEvent } from "./types";

const EVENTS: ChatEvent[] = [
  { type: "session_info", sessionId: "s", conversationId: "c", model: { name: "m", scripted: true } },
  { type: "text", content: "Hel" },
  { type: "text", content: "lo – ünïcode" },
  { type: "complete", reason: "stop" },
];
const WHOLE = EVENTS.map((event, n) => `${JSON.stringify({ lsn: n + 1, event })}\n`).join("");
const BYTES = new TextEncoder().encode(WHOLE);

/** A response that breaks off after so many bytes, or ends well. */
function response(from: number, to: number, breaks: boolean): Response {
  let sent = from;
  const body = new ReadableStream<Uint8Array>({
    pull(controller) {
      if (sent < to) {
        controller.enqueue(BYTES.slice(sent, Math.min(to, sent + 50)));
        sent += 50;
      } else if (breaks) controller.error(new TypeError("network error"));
      else controller.close();
    },
  });
  return new Response(body);
}

/** Where the line after a number begins. */
const startOf = (lsn: number): number =>
  new TextEncoder().encode(WHOLE.split("\n").slice(0, lsn).join("\n") + (lsn ? "\n" : "")).length;

async function all(run: Partial<Following>): Promise<ChatEvent[]> {
  const got: ChatEvent[] = [];
  const following: Following = {
    sessionId: "s",
    lastLsn: 0,
    reopen: async (_, lastLsn) => response(startOf(lastLsn), BYTES.length, false),
    signal: new AbortController().signal,
    wait: async () => {},
    ...run,
  };
  for await (const event of follow(following)) got.push(event);
  return got;
}

describe("a run", () => {
  it("that is cut after any number of bytes gives every event once, in order", async () => {
    for (let cut = 0; cut <= BYTES.length; cut += 1) {
      expect(await all({ first: response(0, cut, true) })).toEqual(EVENTS);
      expect(await all({ first: response(0, cut, false) })).toEqual(EVENTS);
    }
  });

  it("is read once even if the server repeats lines", async () => {
    const again = async (): Promise<Response> => response(0, BYTES.length, false);
    expect(await all({ first: response(0, startOf(2), true), reopen: again })).toEqual(EVENTS);
  });

  it("asks again behind a missing line", async () => {
    const asked: number[] = [];
    const reopen: Following["reopen"] = async (_, lastLsn) => {
      asked.push(lastLsn);
      return response(startOf(asked.length === 1 ? 2 : lastLsn), BYTES.length, false);
    };
    expect(await all({ first: response(0, startOf(1), true), reopen })).toEqual(EVENTS);
    expect(asked).toEqual([1, 1]);
  });

  it("is joined behind what the conversation shows already", async () => {
    expect(await all({ lastLsn: 2 })).toEqual(EVENTS.slice(2));
  });

  it("tells when the line is lost and when it is back", async () => {
    const told: boolean[] = [];
    await all({ first: response(0, 10, true), onLine: (isUp) => told.push(isUp) });
    expect(told).toEqual([true, false, true]);
  });

  it("that the server does not know any more is gone", async () => {
    const reopen = async (): Promise<Response> => {
      throw new Refused(404, "not_found", "There is no such run");
    };
    await expect(all({ reopen })).rejects.toThrow(RunGone);
  });

  it("goes on trying while the server has trouble", async () => {
    let tries = 0;
    const reopen = async (): Promise<Response> => {
      tries += 1;
      if (tries < 4) throw new Refused(503, "unavailable", "later");
      return response(0, BYTES.length, false);
    };
    expect(await all({ reopen })).toEqual(EVENTS);
  });

  it("that ends without a word is given up after a while", async () => {
    expect(await all({ reopen: async () => response(0, 0, false) })).toEqual([]);
  });
});
