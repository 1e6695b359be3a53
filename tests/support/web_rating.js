// A component of another author, as a page would load it: no build, and the React of the page.
const { React, register } = window.midcall;

register("Rating", ({ props, respond, disabled }) => {
  const stars = Array.from({ length: props.most }, (_, n) => n + 1);
  return React.createElement(
    "div",
    { role: "group", "aria-label": props.message, className: "rating" },
    React.createElement("p", null, props.message),
    stars.map((n) =>
      React.createElement(
        "button",
        { key: n, type: "button", className: "button", disabled, onClick: () => respond({ stars: n }) },
        `${n} ${n === 1 ? "star" : "stars"}`,
      ),
    ),
  );
});
