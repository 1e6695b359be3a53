/** Light, dark, or as the system has it. The chosen one is put on the page by `theme.js` before it is painted. */
import { useState } from "react";

export type Theme = "system" | "light" | "dark";

const PLACE = "midcall.theme";
const ORDER: Theme[] = ["system", "light", "dark"];

export function useTheme(): { theme: Theme; next: Theme; change: () => void } {
  const [theme, setTheme] = useState<Theme>(() => {
    const kept = localStorage.getItem(PLACE);
    return kept === "light" || kept === "dark" ? kept : "system";
  });
  const next = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length] ?? "system";
  const change = (): void => {
    if (next === "system") {
      delete document.documentElement.dataset.theme;
      localStorage.removeItem(PLACE);
    } else {
      document.documentElement.dataset.theme = next;
      localStorage.setItem(PLACE, next);
    }
    setTheme(next);
  };
  return { theme, next, change };
}
