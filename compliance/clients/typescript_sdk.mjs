// The TypeScript SDK of the legacy era: @modelcontextprotocol/sdk.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CreateMessageRequestSchema, ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";
import { OVER_HTTP, OVER_SSE, Person, SERVER, TIMEOUT_MS, run, sampled } from "./checks.mjs";

const person = new Person();
const client = new Client(
  { name: "compliance", version: "1" },
  { capabilities: { elicitation: { form: {} }, sampling: {} } },
);
client.setRequestHandler(ElicitRequestSchema, (request) => person.answer(request));
client.setRequestHandler(CreateMessageRequestSchema, sampled);

const [command, ...args] = SERVER;
const Http = OVER_SSE ? SSEClientTransport : StreamableHTTPClientTransport;
const transport = OVER_HTTP ? new Http(new URL(command)) : new StdioClientTransport({ command, args });

// This client tells the revision only to its transport.
let revision;
const tell = transport.setProtocolVersion?.bind(transport);
transport.setProtocolVersion = (version) => {
  revision = version;
  tell?.(version);
};

await client.connect(transport);
await run(
  {
    revision: () => revision,
    tools: async () => (await client.listTools()).tools.map((tool) => tool.name),
    call: (name, args, onprogress) =>
      client.callTool({ name, arguments: args }, undefined, { onprogress, timeout: TIMEOUT_MS }),
  },
  person,
);
await client.close();
