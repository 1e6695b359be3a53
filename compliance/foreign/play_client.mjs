// The TypeScript client of the modern era: @modelcontextprotocol/client.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { MODE, MODERN, OVER_HTTP, PLAN, SERVER, TIMEOUT_MS, asked, run } from "./play.mjs";

const client = new Client(
  { name: "compliance", version: "1" },
  {
    capabilities: { elicitation: { form: {}, url: {} }, sampling: {}, roots: {} },
    versionNegotiation: { mode: MODE === "modern" ? { pin: MODERN } : MODE },
  },
);
client.setRequestHandler("elicitation/create", ({ params }) => {
  asked.push(params.mode ?? "form");
  return { action: "accept", ...(params.mode === "url" ? {} : { content: PLAN.answer }) };
});
client.setRequestHandler("sampling/createMessage", () => {
  asked.push("sample");
  return { role: "assistant", content: { type: "text", text: PLAN.sample }, model: "none" };
});
client.setRequestHandler("roots/list", () => ({ roots: PLAN.roots.map((uri) => ({ uri })) }));

const [command, ...args] = SERVER;
await client.connect(
  OVER_HTTP
    ? new StreamableHTTPClientTransport(new URL(command))
    : new StdioClientTransport({ command, args }),
);
const options = { timeout: TIMEOUT_MS };
await run({
  tools: async () => {
    const { tools } = await client.listTools(undefined, { cacheMode: "refresh" });
    return tools.map((tool) => tool.name);
  },
  call: (name, args, onprogress) => client.callTool({ name, arguments: args }, { ...options, onprogress }),
  read: (uri) => client.readResource({ uri }, options),
  prompt: (name, args) => client.getPrompt({ name, arguments: args }, options),
});
await client.close();
