// The tools, with @modelcontextprotocol/server 2: on stdio, or over HTTP with a port as argument.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { NodeStreamableHTTPServerTransport, toNodeHandler } from "@modelcontextprotocol/node";
import { acceptedContent, createMcpHandler, inputRequired, McpServer } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { z } from "zod";

const MODERN = "2026-07-28";
const Confirmation = z.object({ confirmed: z.boolean() });
const question = {
  message: "Go on?",
  requestedSchema: {
    type: "object",
    properties: { confirmed: { type: "boolean" } },
    required: ["confirmed"],
  },
};
const Message = z.object({ message: z.string() });
const Nothing = z.object({});
const text = (value) => ({ content: [{ type: "text", text: String(value) }] });

function bench() {
  const server = new McpServer({ name: "bench", version: "1" });
  server.registerTool("once", { inputSchema: Message }, async ({ message }) => text(message));
  server.registerTool("ask", { inputSchema: Nothing }, async (_, ctx) => {
    const options = { timeout: 3_600_000, relatedRequestId: ctx.mcpReq.id };
    const answer = await ctx.mcpReq.elicitInput(question, options);
    return text(answer.action === "accept" && answer.content.confirmed);
  });
  server.registerTool("ask_modern", { inputSchema: Nothing }, async (_, ctx) => {
    const answer = acceptedContent(ctx.mcpReq.inputResponses, "confirm", Confirmation);
    if (!answer) return inputRequired({ inputRequests: { confirm: inputRequired.elicit(question) } });
    return text(answer.confirmed);
  });
  return server;
}

const port = process.argv[2];
if (!port) {
  serveStdio(bench);
} else {
  const modern = toNodeHandler(createMcpHandler(bench, { legacy: "reject" }));
  const sessions = new Map();
  createServer(async (request, response) => {
    if (request.headers["mcp-protocol-version"] === MODERN) return modern(request, response);
    let transport = sessions.get(request.headers["mcp-session-id"]);
    if (!transport) {
      transport = new NodeStreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: (id) => sessions.set(id, transport),
      });
      await bench().connect(transport);
    }
    await transport.handleRequest(request, response);
  }).listen(Number(port), "127.0.0.1");
}
