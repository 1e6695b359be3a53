import { fileURLToPath } from "node:url";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";
import { budget } from "./plugins/budget.ts";
import { theme } from "./plugins/theme.ts";

// `MIDCALL_URL=http://127.0.0.1:8000 npm run dev` works on the page beside a server that runs.
const server = process.env.MIDCALL_URL ?? "http://127.0.0.1:8000";
const isPage = (accept: string | undefined): boolean => accept?.includes("text/html") ?? false;

export default defineConfig({
  base: "./", // the server puts in where the page is mounted
  plugins: [react(), theme(), budget(120_000)],
  build: {
    outDir: fileURLToPath(new URL("../src/midcall/web", import.meta.url)),
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    license: { fileName: "licenses.md" }, // of what is bundled, as it goes into the wheel
  },
  server: {
    proxy: {
      "/chat": server,
      "/web-modules": server,
      "/web-modules.json": server,
      "/fsm": server,
      "/ws": { target: server, ws: true },
      "/q": { target: server, bypass: (req) => (isPage(req.headers.accept) ? "/index.html" : undefined) },
      "/calls": { target: server, bypass: (req) => (isPage(req.headers.accept) ? "/index.html" : undefined) },
    },
  },
  test: { environment: "node", include: ["src/**/*.test.{ts,tsx}"], restoreMocks: true, testTimeout: 60_000 },
});
