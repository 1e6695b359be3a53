// The tools, with @modelcontextprotocol/sdk 1: on stdio, or over HTTP with a port as argument.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { ElicitResultSchema } from "@modelcontextprotocol/sdk/types.js";
import { z } from "zod";

const requestedSchema = {
  type: "object",
  properties: { confirmed: { type: "boolean" } },
  required: ["confirmed"],
};
const text = (value) => ({ content: [{ type: "text", text: String(value) }] });

function bench() {
  const server = new McpServer({ name: "bench", version: "1" });
  server.registerTool("once", { inputSchema: { message: z.string() } }, async ({ message }) => text(message));
  server.registerTool("ask", { inputSchema: {} }, async (_, extra) => {
    const params = { message: "Go on?", requestedSchema };
    const request = { method: "elicitation/create", params };
    const answer = await extra.sendRequest(request, ElicitResultSchema, { timeout: 3_600_000 });
    return text(answer.action === "accept" && answer.content.confirmed);
  });
  return server;
}

const port = process.argv[2];
if (!port) {
  await bench().connect(new StdioServerTransport());
} else {
  const sessions = new Map();
  createServer(async (request, response) => {
    let transport = sessions.get(request.headers["mcp-session-id"]);
    if (!transport) {
      transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: (id) => sessions.set(id, transport),
      });
      await bench().connect(transport);
    }
    await transport.handleRequest(request, response);
  }).listen(Number(port), "127.0.0.1");
}
