"""The journal: what a call must not lose, and the seals on what is handed out."""
