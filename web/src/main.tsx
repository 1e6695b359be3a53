import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./App";
import { FlightList } from "./components/FlightList";
import { loadModules, registerComponent } from "./components/registry";
import { SeatPicker } from "./components/SeatPicker";
import "./styles/base.css";
import "./styles/layout.css";
import "./styles/forms.css";
import "./styles/chat.css";
import "./styles/components.css";

registerComponent("FlightList", FlightList);
registerComponent("SeatPicker", SeatPicker);
void loadModules();

const root = document.getElementById("root");
if (root !== null) {
  createRoot(root).render(
    <StrictMode>
      <App />
    </StrictMode>,
  );
}
