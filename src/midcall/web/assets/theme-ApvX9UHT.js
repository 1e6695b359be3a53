try {
  const theme = localStorage.getItem("midcall.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {}
