/**
 * What a conversation shows, as plain values: made from the messages that the server keeps, and carried on
 * by the events of a run. Nothing here knows a browser.
 */
import type {
  AnsweredQuestion,
  ChatEvent,
  ContentPart,
  Elicit,
  Failure,
  FileInfo,
  Message,
  Reply,
  ToolDetails,
} from "../api/types";

/** `refused`: the person did not want to answer, or went on without it. That is no failure. */
export type CallStatus = "running" | "waiting" | "done" | "failed" | "refused";

export interface ToolCall {
  id: string;
  name: string;
  arguments: unknown;
  status: CallStatus;
  progress: { message: string; percentage?: number | null } | null;
  result: { content: string; structured?: unknown } | null;
  error: string | null;
  /** Of the error. */
  code: string;
  questions: Elicit[];
  /** What was asked and is over, in its order. */
  answered: AnsweredQuestion[];
  parts: ContentPart[];
  /** How long it has run, without the time that it waited for the person. */
  seconds: number | null;
}

export interface UserEntry {
  kind: "user";
  text: string;
  /** With what is in it, in base64, as long as the server is not known to have it. */
  files?: (FileInfo & { data?: string })[];
  time?: number;
  /** Why it did not arrive. */
  unsent?: string;
  /** It ends no question that waits. */
  aside?: boolean;
}

export type Entry =
  | UserEntry
  | {
      kind: "assistant";
      text: string;
      thinking: string;
      calls: ToolCall[];
      time?: number;
      /** Nothing is added to it any more. */
      closed?: boolean;
    }
  | { kind: "notice"; tone: "info" | "error"; text: string; retry: boolean };

export type Transcript = readonly Entry[];

type Assistant = Extract<Entry, { kind: "assistant" }>;

const REFUSED = new Set(["declined", "cancelled", "dropped"]);

const failedAs = (code: string): CallStatus => (REFUSED.has(code) ? "refused" : "failed");

export function fromMessages(
  messages: readonly Message[],
  pending: readonly Elicit[],
  details: Record<string, ToolDetails> = {},
): Transcript {
  const results = new Map(messages.filter((m) => m.role === "tool").map((m) => [m.tool_call_id, m]));
  const entries: Entry[] = [];
  for (const message of messages) {
    const time = message.time ? { time: message.time } : {};
    if (message.role === "user")
      entries.push({
        kind: "user",
        text: message.content,
        ...time,
        ...(message.files ? { files: message.files } : {}),
      });
    if (message.role !== "assistant") continue;
    const calls = (message.tool_calls ?? []).map(({ id, name, arguments: text }): ToolCall => {
      const { code = "", seconds = 0, parts = [], answered = {} } = details[id] ?? {};
      const call = {
        ...newCall(id, name, parsed(text)),
        code,
        seconds: details[id] === undefined ? null : seconds,
        parts,
        answered: Object.values(answered),
      };
      const result = results.get(id);
      const questions = pending.filter((one) => one.callId === id);
      if (result?.is_error) return { ...call, status: failedAs(code), error: result.content };
      if (result) return { ...call, status: "done", result: { content: result.content } };
      return { ...call, status: questions.length ? "waiting" : "running", questions };
    });
    entries.push({
      kind: "assistant",
      text: message.content,
      thinking: message.thinking ?? "",
      calls,
      ...time,
      closed: true,
    });
  }
  return entries;
}

/** The transcript after one more event. */
export function apply(transcript: Transcript, event: ChatEvent): Transcript {
  switch (event.type) {
    case "text":
      return inLast(transcript, (last) => ({ ...last, text: last.text + event.content }));
    case "thinking":
      return inLast(transcript, (last) => ({ ...last, thinking: last.thinking + event.content }));
    case "tool_calls": {
      const known = new Set(callsOf(transcript).map((call) => call.id));
      const calls = event.calls.filter(({ id }) => !known.has(id));
      if (calls.length === 0) return transcript;
      const added = calls.map(({ id, name, arguments: given }) => newCall(id, name, given));
      return inLast(transcript, (last) => ({ ...last, calls: [...last.calls, ...added] }));
    }
    case "tool_progress": {
      const { message, percentage = null } = event;
      return inCall(transcript, event, (call) => ({ ...call, progress: { message, percentage } }));
    }
    case "tool_result": {
      const { content, structured, parts = [], seconds = null } = event;
      return inCall(transcript, event, (call) => ({
        ...ended(call),
        status: "done",
        result: { content, structured },
        parts,
        seconds,
      }));
    }
    case "tool_error": {
      const { message, code = "", seconds = null } = event;
      return inCall(transcript, event, (call) => ({
        ...ended(call),
        answered: code === "dropped" ? [...call.answered, ...call.questions.map(dropped)] : call.answered,
        status: failedAs(code),
        error: message,
        code,
        seconds,
      }));
    }
    case "plugin_elicit_request":
      return inCall(transcript, event, (call) => ({
        ...call,
        status: "waiting",
        progress: null,
        questions: [...call.questions.filter((one) => one.elicitId !== event.elicitId), event],
      }));
    case "plugin_session_status":
      return event.status === "running"
        ? inCall(transcript, event, (call) =>
            call.status === "waiting" && !call.questions.length ? { ...call, status: "running" } : call,
          )
        : transcript;
    case "plugin_session_error":
      return inCall(transcript, event, (call) =>
        event.error === "ELICIT_MISMATCH" ? call : { ...ended(call), status: "failed", error: event.message },
      );
    case "conversation_state":
      return merged(transcript, fromMessages(event.messages, event.pending));
    case "complete": {
      const text = REASONS[event.reason];
      const whole = transcript.map((entry) =>
        entry.kind === "assistant" && !entry.closed ? { ...entry, closed: true } : entry,
      );
      return text === undefined ? whole : [...whole, { kind: "notice", tone: "info", text, retry: false }];
    }
    case "error":
      return [...transcript, noticeOf(event)];
    case "session_info":
      return transcript;
  }
}

const REASONS: Record<string, string> = {
  stopped: "Stopped.",
  length: "The answer ends here, as the model reached its longest one.",
  iterations: "Stopped, as the model called tools too many times in one turn.",
  budget: "Stopped, as the tokens for one turn are used up.",
};

/** With a question answered: it is not asked any more, and stays with its answer. */
export function withAnswer(transcript: Transcript, elicit: Elicit, reply: Reply): Transcript {
  const { elicitId, message, component, schema } = elicit;
  const isLate = elicit.until != null && Date.parse(elicit.until) <= Date.now();
  const noted: AnsweredQuestion = isLate
    ? dropped(elicit)
    : { elicitId, message, ...reply, ...(component || !schema ? {} : { schema }) };
  return inCall(transcript, elicit, (call) => {
    const questions = call.questions.filter((one) => one.elicitId !== elicitId);
    const answered = [...call.answered.filter((one) => one.elicitId !== elicitId), noted];
    return { ...call, questions, answered, status: questions.length ? "waiting" : "running" };
  });
}

export function callsOf(transcript: Transcript): ToolCall[] {
  return transcript.flatMap((entry) => (entry.kind === "assistant" ? entry.calls : []));
}

export const questionsOf = (transcript: Transcript): Elicit[] =>
  callsOf(transcript).flatMap((call) => call.questions);

const newCall = (id: string, name: string, given: unknown): ToolCall => ({
  id,
  name,
  arguments: given,
  status: "running",
  progress: null,
  result: null,
  error: null,
  code: "",
  questions: [],
  answered: [],
  parts: [],
  seconds: null,
});

const ended = (call: ToolCall): ToolCall => ({ ...call, progress: null, questions: [] });

const dropped = ({ elicitId, message }: Elicit): AnsweredQuestion => ({
  elicitId,
  message,
  action: "dropped",
});

/** Changes what the assistant is saying; after a round of tools it begins anew. */
function inLast(transcript: Transcript, change: (last: Assistant) => Assistant): Transcript {
  const last = transcript.at(-1);
  if (last?.kind === "assistant" && last.calls.length === 0 && !last.closed) {
    return [...transcript.slice(0, -1), change(last)];
  }
  const time = Date.now() / 1000;
  return [...transcript, change({ kind: "assistant", text: "", thinking: "", calls: [], time })];
}

function inCall(
  transcript: Transcript,
  { callId }: { callId: string },
  change: (call: ToolCall) => ToolCall,
): Transcript {
  return transcript.map((entry) => {
    if (entry.kind !== "assistant" || !entry.calls.some((call) => call.id === callId)) return entry;
    return { ...entry, calls: entry.calls.map((call) => (call.id === callId ? change(call) : call)) };
  });
}

/**
 * What was read again, with what only this page knows: messages that did not arrive, and notices at the end.
 * How the last turn failed is known to the server: it is shown once, also by a page that did not see it.
 */
export function readAgain(before: Transcript, after: Transcript, failure: Failure | null): Transcript {
  const isOver = countOf(after) > countOf(before); // somebody has said more: notices are of what was before
  const own = before.filter(
    (entry) =>
      (entry.kind === "notice" && !isOver && (entry.tone === "info" || failure !== null)) ||
      (entry.kind === "user" && entry.unsent !== undefined),
  );
  const isTold = own.some((entry) => entry.kind === "notice" && entry.tone === "error");
  return [...merged(before, after), ...(failure === null || isTold ? [] : [noticeOf(failure)]), ...own];
}

const noticeOf = ({ message, recoverable }: Failure): Entry => ({
  kind: "notice",
  tone: "error",
  text: message,
  retry: recoverable,
});

/** As many letters as the server takes in a message. */
const MOST_LETTERS = 200_000;

/** Why a text cannot be said, or null. */
export function tooLong(text: string): string | null {
  const letters = text.length > MOST_LETTERS ? [...text].length : 0;
  if (letters <= MOST_LETTERS) return null;
  const [has, most] = [letters, MOST_LETTERS].map((number) => number.toLocaleString("en"));
  return `This message has ${has} letters; at most ${most} can be sent.`;
}

/** How many messages of the person there are. */
export const countOf = (transcript: Transcript): number =>
  transcript.filter((entry) => entry.kind === "user" && entry.unsent === undefined).length;

/** Without notices of turns that are over. */
export const withoutNotices = (transcript: Transcript): Transcript =>
  transcript.filter((entry) => entry.kind !== "notice");

/** What the server keeps, with what only this page has seen: structured results, and how calls went meanwhile. */
function merged(before: Transcript, after: Transcript): Transcript {
  const seen = new Map(callsOf(before).map((call) => [call.id, call]));
  return after.map((entry) =>
    entry.kind !== "assistant"
      ? entry
      : {
          ...entry,
          calls: entry.calls.map((call) => {
            const before = seen.get(call.id);
            if (before === undefined) return call;
            const structured = before.result?.structured;
            const result =
              call.result && structured !== undefined ? { ...call.result, structured } : call.result;
            const { code, seconds, parts, answered } = call.seconds !== null ? call : before;
            const status = call.error === null ? call.status : failedAs(code);
            return { ...call, result, code, seconds, parts, answered, status };
          }),
        },
  );
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}
