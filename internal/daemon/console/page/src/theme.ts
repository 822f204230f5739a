// Light or dark: as the system is, unless somebody has chosen.
export type Theme = "light" | "dark";

const key = "ballast-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");

export function theme(): Theme {
  const chosen = localStorage.getItem(key);
  if (chosen === "light" || chosen === "dark") return chosen;
  return system.matches ? "dark" : "light";
}

export function applyTheme(): void {
  document.documentElement.dataset["theme"] = theme();
}

export function toggleTheme(): void {
  localStorage.setItem(key, theme() === "dark" ? "light" : "dark");
  applyTheme();
}

export function followSystem(changed: () => void): void {
  system.addEventListener("change", () => {
    applyTheme();
    changed();
  });
}

// color is one of the stylesheet's, as it is in the theme of now.
export function color(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
