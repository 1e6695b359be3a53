// The TypeScript client of the modern era: @modelcontextprotocol/client.

import { Client, SSEClientTransport, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { MODE, MODERN, OVER_HTTP, OVER_SSE, Person, SERVER, TIMEOUT_MS, run, sampled } from "./checks.mjs";

const person = new Person();
const client = new Client(
  { name: "compliance", version: "1" },
  {
    capabilities: { elicitation: { form: {} }, sampling: {} },
    versionNegotiation: { mode: MODE === "modern" ? { pin: MODERN } : MODE },
  },
);
client.setRequestHandler("elicitation/create", (request) => person.answer(request));
client.setRequestHandler("sampling/createMessage", sampled);

const [command, ...args] = SERVER;
const Http = OVER_SSE ? SSEClientTransport : StreamableHTTPClientTransport;
await client.connect(OVER_HTTP ? new Http(new URL(command)) : new StdioClientTransport({ command, args }));
await run(
  {
    revision: () => client.getNegotiatedProtocolVersion(),
    tools: async () => (await client.listTools()).tools.map((tool) => tool.name),
    call: (name, args, onprogress) =>
      client.callTool({ name, arguments: args }, { onprogress, timeout: TIMEOUT_MS }),
  },
  person,
);
await client.close();
