/** The requests of the chat, one function each. */
import { get, request } from "./http";
import type { ChatInfo, Conversation, ConversationSummary, ElicitResponse } from "./types";

export interface TurnBody {
  conversationId?: string;
  message?: string;
  /** What is said ends no question that waits. */
  aside?: boolean;
  /** It takes the place of this message, and all that came after it is forgotten. */
  edit?: { message: number; of: number };
  /** A tool call that is made again, with the same arguments. */
  retry?: string;
  model?: string;
  attachments?: { name: string; data: string }[];
  pluginElicitResponses?: ElicitResponse[];
  /** Go on with what was cut off. */
  resume?: boolean;
}

const LINES = { Accept: "application/x-ndjson" };

export const fetchInfo = (): Promise<ChatInfo> => get("chat/info");

export const listConversations = async (): Promise<ConversationSummary[]> =>
  (await get<{ conversations: ConversationSummary[] }>("chat/conversations")).conversations;

/** The conversations that have all words of a query in them, and whether these are all. */
export const searchConversations = (
  query: string,
  signal: AbortSignal,
): Promise<{ conversations: ConversationSummary[]; complete: boolean }> =>
  get(`chat/conversations?q=${encodeURIComponent(query)}`, { signal });

export const renameConversation = async (id: string, title: string): Promise<void> => {
  await request(`chat/conversations/${encodeURIComponent(id)}`, { method: "PATCH", body: { title } });
};

/** A conversation to take along, with the name of its file. */
export async function exportConversation(
  id: string,
  format: "json" | "markdown",
): Promise<{ name: string; blob: Blob }> {
  const response = await request(`chat/conversations/${encodeURIComponent(id)}/export?format=${format}`);
  const named = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition") ?? "");
  return { name: named?.[1] ?? "conversation", blob: await response.blob() };
}

export const fetchFile = async (conversation: string, file: string, signal: AbortSignal): Promise<Blob> => {
  const path = `chat/conversations/${encodeURIComponent(conversation)}/files/${encodeURIComponent(file)}`;
  return (await request(path, { signal })).blob();
};

export const fetchConversation = (id: string, signal?: AbortSignal): Promise<Conversation> =>
  get(`chat/conversations/${encodeURIComponent(id)}`, signal ? { signal } : {});

export const deleteConversation = async (id: string): Promise<void> => {
  await request(`chat/conversations/${encodeURIComponent(id)}`, { method: "DELETE" });
};

export const beginTurn = (body: TurnBody): Promise<Response> =>
  request("chat", { method: "POST", body, headers: LINES });

export const joinRun = (sessionId: string, lastLsn: number, signal: AbortSignal): Promise<Response> =>
  request("chat", {
    headers: { ...LINES, "X-Session-Id": sessionId, "X-Last-LSN": String(lastLsn) },
    signal,
  });

export const stopTurn = async (conversationId: string): Promise<void> => {
  await request("chat/stop", { method: "POST", body: { conversationId } });
};
