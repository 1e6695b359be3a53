/** What goes over the wire between the page and the server, as far as the page reads it. */

export interface Schema {
  $ref?: string;
  $defs?: Record<string, Schema>;
  definitions?: Record<string, Schema>;
  type?: string | string[];
  title?: string;
  description?: string;
  default?: unknown;
  const?: unknown;
  enum?: unknown[];
  enumNames?: string[];
  format?: string;
  contentEncoding?: string;
  contentMediaType?: string;
  pattern?: string;
  minLength?: number;
  maxLength?: number;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  exclusiveMaximum?: number;
  multipleOf?: number;
  properties?: Record<string, Schema>;
  required?: string[];
  additionalProperties?: boolean | Schema;
  items?: Schema | boolean;
  prefixItems?: Schema[];
  minItems?: number;
  maxItems?: number;
  uniqueItems?: boolean;
  anyOf?: Schema[];
  oneOf?: Schema[];
  allOf?: Schema[];
  examples?: unknown[];
  "x-model-context"?: Record<string, unknown>;
}

export interface ModelInfo {
  name: string;
  scripted: boolean;
  /** It can be shown pictures. */
  images?: boolean;
}

export interface ChatInfo {
  model: ModelInfo;
  /** All that can be chosen. */
  models?: ModelInfo[];
  hub: { name: string; description: string };
  suggestions: string[];
}

export interface ConversationSummary {
  id: string;
  title: string;
  updated: number | string;
  waiting: boolean;
  running: boolean;
  /** What a search has found in it. */
  snippet?: string;
}

/** A file that was sent with a message. */
export interface FileInfo {
  id: string;
  name: string;
  type: string;
  size: number;
}

/** A part of a tool's result that is no text. */
export interface ContentPart {
  kind: "image" | "audio" | "file" | "link";
  name: string;
  type?: string;
  size?: number;
  /** Under which its data are to be had, if they are kept. */
  file?: string;
  uri?: string;
}

/** A question that is over. */
export interface AnsweredQuestion {
  elicitId: string;
  message: string;
  action: "accept" | "decline" | "cancel" | "dropped";
  content?: unknown;
  schema?: Schema | null;
}

/** How a tool call went, as the server keeps it. */
export interface ToolDetails {
  seconds?: number;
  code?: string;
  answered?: Record<string, AnsweredQuestion>;
  parts?: ContentPart[];
}

export interface Message {
  role: "user" | "assistant" | "tool" | "system";
  content: string;
  tool_calls?: { id: string; name: string; arguments: string }[];
  tool_call_id?: string;
  is_error?: boolean;
  thinking?: string;
  files?: FileInfo[];
  time?: number;
}

/** The component that a question is shown with. */
export interface Shown {
  name: string;
  props: Record<string, unknown>;
}

export interface Elicit {
  type: "plugin_elicit_request";
  sessionId: string;
  callId: string;
  toolName: string;
  elicitId: string;
  key: string;
  message: string;
  schema?: Schema | null;
  context?: Record<string, unknown> | null;
  component?: Shown | null;
  mode?: string | null;
  url?: string | null;
  /** When it is too late. */
  until?: string | null;
}

export interface Conversation {
  id: string;
  title: string;
  model?: string;
  messages: Message[];
  calls?: Record<string, ToolDetails>;
  pending: Elicit[];
  run: { sessionId: string; lsn: number } | null;
  /** Its last turn failed or died with the server, and can be gone on with. */
  cutOff: boolean;
  error: Failure | null;
}

export interface Failure {
  message: string;
  code: string;
  recoverable: boolean;
}

export type SessionStatus =
  | "running"
  | "awaiting_elicit"
  | "awaiting_sample"
  | "completed"
  | "failed"
  | "aborted";

export type ChatEvent =
  | { type: "session_info"; sessionId: string; conversationId: string; model: ModelInfo }
  | { type: "text"; content: string }
  | { type: "thinking"; content: string }
  | { type: "tool_calls"; calls: { id: string; name: string; arguments: unknown }[] }
  | { type: "tool_progress"; callId: string; toolName: string; message: string; percentage?: number | null }
  | {
      type: "tool_result";
      callId: string;
      toolName: string;
      content: string;
      structured?: unknown;
      parts?: ContentPart[];
      seconds?: number;
    }
  | {
      type: "tool_error";
      callId: string;
      toolName: string;
      message: string;
      code?: string;
      seconds?: number;
    }
  | Elicit
  | {
      type: "plugin_session_status";
      sessionId: string;
      callId: string;
      toolName: string;
      status: SessionStatus;
    }
  | { type: "plugin_session_error"; sessionId: string; callId: string; error: string; message: string }
  | { type: "conversation_state"; conversationId: string; messages: Message[]; pending: Elicit[] }
  | { type: "complete"; reason: string; usage?: { input: number; output: number } }
  | ({ type: "error" } & Failure);

export interface Line {
  lsn: number;
  event: ChatEvent;
}

/** What a person does with a question. */
export type Reply = { action: "accept"; content?: unknown } | { action: "decline" } | { action: "cancel" };

export interface ElicitResponse {
  sessionId: string;
  callId: string;
  elicitId: string;
  result: Reply;
}

/** An open question of a call in the journal. */
export interface AskedQuestion {
  key: string;
  message: string;
  /** Seconds since it was asked. */
  age: number;
  question: RequestType;
  /** When it is too late. */
  until: string | null;
  /** Where in the call it is asked: another question may have the same key. */
  place: string;
  /** Who is asked, if that is not the caller. */
  to: string | null;
  /** Its address, if it is for whoever looks at it. */
  link?: string;
  /** Known to whoever has looked there. */
  component?: Shown | null;
}

/** An answer to it, or what was answered in its components so far. */
export type Given = { answer: unknown } | { rendered: unknown[] };

/** One question, as its link shows it. */
export interface LinkedQuestion extends AskedQuestion {
  method: string;
  caller: string | null;
}

export interface CallSummary {
  id: string;
  method: string;
  status: string;
  /** Seconds since it was started; and since it has ended. */
  age: number;
  ended?: number;
  waiting: boolean;
  /** Who has called it; nothing without authentication. */
  caller: string | null;
  /** Whether that is whoever looks at it. */
  own: boolean;
  /** The conversation in which a model has called it. */
  conversation?: string;
  questions: (AskedQuestion | { request_id: string; message: string; age: number })[];
}

export interface CallList {
  calls: CallSummary[];
  /** Where the next page begins. */
  next: string | null;
  /** Whether whoever looks may see the calls of everybody. */
  admin: boolean;
}

/** One thing that a call did, as its journal has it. */
export interface CallEntry {
  place: string;
  type: "step" | "question" | "value";
  what: string;
  state: string;
  value?: unknown;
}

export interface CallDetails {
  id: string;
  method: string;
  status: string;
  arguments?: unknown;
  entries?: CallEntry[];
  /** As the protocol keeps it by which it was called. */
  outcome?: {
    error?: { message?: string; code?: string };
    contents?: unknown[];
    content?: unknown[];
    structuredContent?: unknown;
    result?: { content?: unknown[]; structuredContent?: unknown };
  } | null;
  /** The schema of what the method gives, where it is known. */
  returns?: Schema | null;
}

// --- the hub's own protocol -------------------------------------------------------------------

export interface MethodSchema {
  name: string;
  description: string;
  params: Schema;
  returns?: Schema | null;
  streaming: boolean;
  interactive: boolean;
}

export interface HubSchema {
  name: string;
  description: string;
  version: string;
  namespace?: string;
  activations: { namespace: string; description: string; version: string; methods: MethodSchema[] }[];
  hubs: HubSchema[];
}

export interface Option {
  value: string;
  label: string;
  description?: string;
}

export type RequestType =
  | { Confirm: { message: string; default?: boolean } }
  | { Prompt: { message: string; default?: string; placeholder?: string } }
  | { Select: { message: string; options: Option[]; multi_select: boolean } }
  | { Custom: { type_name: string; data?: unknown; schema?: Schema } };

interface Metadata {
  provenance: string[];
  plexus_hash: string;
  timestamp: number;
}

export type Item = { metadata: Metadata } & (
  | { type: "data"; content_type: string; content: unknown }
  | { type: "progress"; message: string; percentage?: number }
  | { type: "request"; request_id: string; request_type: RequestType; timeout_ms?: number }
  | { type: "request_cancelled"; request_id: string; reason: string }
  | { type: "error"; message: string; code: string; recoverable: boolean }
  | { type: "done" }
);

export interface LogLine {
  type: "log";
  level: string;
  message: string;
  data: unknown;
}
