// The separator between the list and the panels: drag it, or move it with the arrow keys. The width is remembered.

const [LEAST, MOST, INITIAL, STEP] = [25, 80, 50, 3]; // per cent of the page that the panels take
const STORED = "polyfed-panel-width";

export class Split {
  constructor(separator, container) {
    Object.assign(this, { separator, container });
    separator.setAttribute("aria-valuemin", LEAST);
    separator.setAttribute("aria-valuemax", MOST);
    separator.addEventListener("pointerdown", (event) => this.drag(event));
    separator.addEventListener("dblclick", () => this.set(INITIAL));
    separator.addEventListener("keydown", (event) => this.key(event));
    this.set(Number(stored()) || INITIAL);
  }

  set(width) {
    this.width = Math.min(MOST, Math.max(LEAST, width));
    this.container.style.setProperty("--panels", `${this.width}%`);
    this.separator.setAttribute("aria-valuenow", Math.round(this.width));
    try {
      localStorage.setItem(STORED, String(this.width));
    } catch {
      // the browser stores nothing: the width is that of this page view
    }
  }

  drag(event) {
    event.preventDefault();
    this.separator.focus();
    this.separator.setPointerCapture(event.pointerId);
    const move = ({ clientX }) => {
      const { left, width } = this.container.getBoundingClientRect();
      this.set((100 * (left + width - clientX)) / width);
    };
    this.separator.addEventListener("pointermove", move);
    this.separator.addEventListener("lostpointercapture", () => this.separator.removeEventListener("pointermove", move), { once: true });
  }

  key(event) {
    const widths = { ArrowLeft: this.width + STEP, ArrowRight: this.width - STEP, Home: MOST, End: LEAST };
    if (!(event.key in widths)) return;
    event.preventDefault();
    this.set(widths[event.key]);
  }
}

function stored() {
  try {
    return localStorage.getItem(STORED);
  } catch {
    return null;
  }
}
