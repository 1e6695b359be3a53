// What `play.py` is for Python: takes the steps of a plan, and prints one JSON line for each.
//
// The player gives `run` a connected client as { tools(), call(name, args, onProgress), read(uri),
// prompt(name, args) }, whose results are as MCP has them.

import { readFileSync } from "node:fs";
import { setTimeout } from "node:timers/promises";

const [file, mode, ...server] = process.argv.slice(2);
export const PLAN = JSON.parse(readFileSync(file, "utf8"));
export const MODE = mode;
export const SERVER = server;
export const OVER_HTTP = server[0].startsWith("http://");
export const MODERN = "2026-07-28";
export const TIMEOUT_MS = 60_000;

/** What the server has asked for in this step: a form, a url, a sample, roots. */
export const asked = [];

export async function run(client) {
  for (const [step, what] of PLAN.steps.entries()) {
    asked.length = 0;
    try {
      report({ step, saw: await take(client, what) });
    } catch (error) {
      report({ step, raised: String(error) });
    }
  }
}

async function take(client, step) {
  if (step.list === "tools") return { tools: await tools(client) };
  if (step.read) return { text: texts((await client.read(step.read)).contents) };
  if (step.prompt) {
    const { messages } = await client.prompt(step.prompt, step.arguments);
    return { text: texts(messages.map(({ content }) => content)) };
  }
  const progress = [];
  const heard = ({ progress: value, total }) => {
    if (total) progress.push(value / total); // without: the client itself tells that it was asked
  };
  const result = await client.call(step.call, step.arguments, heard);
  return {
    text: texts(result.content),
    kinds: result.content.map(({ type }) => type),
    structured: result.structuredContent ?? null,
    failed: Boolean(result.isError),
    progress,
    asked: [...asked],
  };
}

/** The tools, once there are any: behind a hub or a proxy, a slow server may still be starting. */
async function tools(client) {
  for (let second = 0; second < TIMEOUT_MS / 1000; second++) {
    const names = await client.tools();
    if (names.length > 0) return names;
    await setTimeout(1000);
  }
  return [];
}

function texts(blocks) {
  return blocks.map(({ text }) => text ?? "").join("\n");
}

function report(line) {
  console.log(JSON.stringify(line));
}
