// Light or dark: as the system has it, until somebody says otherwise.

const KEY = "quietcount-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

export function startTheme(button, onChange) {
  const apply = () => {
    const said = localStorage.getItem(KEY);
    const theme = said === "light" || said === "dark" ? said : dark.matches ? "dark" : "light";
    document.documentElement.dataset.theme = theme;
    button.textContent = theme === "dark" ? "☀ Light" : "☾ Dark";
    button.setAttribute("aria-label", theme === "dark" ? "Show in light colours" : "Show in dark colours");
    onChange();
  };
  button.addEventListener("click", () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    // What the system says needs no remembering.
    if (next === (dark.matches ? "dark" : "light")) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, next);
    apply();
  });
  dark.addEventListener("change", apply);
  apply();
}
