// Runs the commands of the Inspector, in a home of their own so that they leave nothing in the user's.

import { execFile } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { TIMEOUT_MS } from "./checks.mjs";

const home = mkdtempSync(join(tmpdir(), "midcall-"));
process.on("exit", () => rmSync(home, { recursive: true, force: true }));

const environment = {
  ...process.env,
  HOME: home,
  MCP_INSPECTOR_DAEMON_DIR: home,
  MCP_INSPECTOR_SECRET_STORE: "file",
};

/** What a command of the package writes to standard output. A failed tool ends it with an error, too. */
export function output(name, ...args) {
  const script = join(import.meta.dirname, "node_modules", ".bin", name);
  const options = { env: environment, timeout: TIMEOUT_MS };
  return new Promise((resolve, reject) => {
    const child = execFile(process.execPath, [script, ...args], options, (error, stdout, stderr) => {
      if (error && !stdout.trim()) reject(new Error(stderr.trim() || error.message));
      else resolve(stdout);
    });
    child.stdin.end();
  });
}
