// mcpdo of MCP Inspector: commands on a connection that a daemon holds, questions included.

import { MODE, Person, SERVER, run } from "./checks.mjs";
import { output } from "./commands.mjs";

const person = new Person();

async function mcpdo(...args) {
  return JSON.parse(await output("mcpdo", "--format", "json", ...args));
}

/** Answers questions until there is a result. */
async function answered(outcome) {
  while (outcome.elicitationPending) {
    const { elicitationId, message, requestedSchema } = outcome.elicitationPending;
    const { action, content } = person.answer({ params: { message, requestedSchema } });
    const answer = action === "accept" ? JSON.stringify(content) : `--${action}`;
    outcome = await mcpdo("elicitation/respond", elicitationId, answer);
  }
  return outcome;
}

try {
  const { name: connection } = await mcpdo("connect", "--era", MODE, "--", ...SERVER);
  const request = (...args) => mcpdo("--connection", connection, ...args);
  await run(
    {
      revision: async () => (await request("connections/show")).protocolVersion,
      tools: async () => (await request("tools/list")).tools.map((tool) => tool.name),
      call: async (tool, args) => answered(await request("tools/call", tool, JSON.stringify(args))),
    },
    person,
    {
      progress: "sends no progress token: mcpdo prints the result and nothing else",
      sample: "declares no sampling: mcpdo has no model",
    },
  );
} finally {
  await output("mcpdo", "daemon", "stop");
}
