/** The requests of the chat, one function each. */
import { get, request } from "./http";
import type { ChatInfo, Conversation, ConversationSummary, ElicitResponse } from "./types";

export interface TurnBody {
  conversationId?: string;
  message?: string;
  pluginElicitResponses?: ElicitResponse[];
  /** Go on with what was cut off. */
  resume?: boolean;
}

const LINES = { Accept: "application/x-ndjson" };

export const fetchInfo = (): Promise<ChatInfo> => get("chat/info");

export const listConversations = async (): Promise<ConversationSummary[]> =>
  (await get<{ conversations: ConversationSummary[] }>("chat/conversations")).conversations;

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
