/**
 * Puts the chosen colour scheme on the page before anything is painted. It is a file of its own, as the
 * Content-Security-Policy lets no script stand in the page, and a module would come too late.
 */
import { createHash } from "node:crypto";
import type { Plugin } from "vite";

const SCRIPT = `try {
  const theme = localStorage.getItem("midcall.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {}
`;

export function theme(): Plugin {
  const hash = createHash("sha256").update(SCRIPT).digest("base64url").slice(0, 8);
  const fileName = `assets/theme-${hash}.js`;
  return {
    name: "midcall-theme",
    apply: "build",
    generateBundle() {
      this.emitFile({ type: "asset", fileName, source: SCRIPT });
    },
    transformIndexHtml() {
      return [{ tag: "script", attrs: { src: `./${fileName}` }, injectTo: "head-prepend" }];
    },
  };
}
