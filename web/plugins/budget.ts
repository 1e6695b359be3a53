/**
 * Measures what a browser loads before it can paint the chat: the entry and everything that it imports
 * at once, with their styles. The build fails when that is over the budget, so that nobody notices only years later.
 */
import { gzipSync } from "node:zlib";
import type { Plugin } from "vite";

const KB = 1000;

export function budget(limit: number): Plugin {
  return {
    name: "midcall-budget",
    apply: "build",
    generateBundle(_options, bundle) {
      const sizes = new Map<string, number>();
      const chunks = new Map<string, { imports: string[]; styles: Iterable<string>; isEntry: boolean }>();
      for (const [name, file] of Object.entries(bundle)) {
        const source = file.type === "chunk" ? file.code : file.source;
        sizes.set(name, gzipSync(source, { level: 9 }).length);
        if (file.type !== "chunk") continue;
        const styles = file.viteMetadata?.importedCss ?? [];
        chunks.set(name, { imports: file.imports, styles, isEntry: file.isEntry });
      }
      const first = new Set<string>();
      const styles = new Set<string>();
      const add = (name: string): void => {
        const chunk = chunks.get(name);
        if (chunk === undefined || first.has(name)) return;
        first.add(name);
        for (const one of chunk.imports) add(one);
        for (const one of chunk.styles) styles.add(one);
      };
      for (const [name, chunk] of chunks) if (chunk.isEntry) add(name);
      const sizeOf = (names: Set<string>): number =>
        [...names].reduce((sum, name) => sum + (sizes.get(name) ?? 0), 0);
      const script = sizeOf(first);
      const total = script + sizeOf(styles);
      const report = {
        firstPaintScriptGzip: script,
        firstPaintGzip: total,
        limit,
        files: Object.fromEntries([...sizes].sort(([a], [b]) => a.localeCompare(b))),
      };
      this.emitFile({
        type: "asset",
        fileName: "sizes.json",
        source: `${JSON.stringify(report, null, 2)}\n`,
      });
      const said = `script and styles before the chat is painted: ${(total / KB).toFixed(1)} kB gzip of ${limit / KB}`;
      if (total > limit) this.error(`Over budget: ${said}`);
      this.info(said);
    },
  };
}
