// Updates from the server: server-sent events, or requests about once a second if the server offers no stream.

const INTERVAL = 800; // milliseconds between two requests
const SILENCE = 30000; // milliseconds without a message after which a stream counts as lost; heartbeats are more frequent
const [FIRST_RETRY, LAST_RETRY] = [2000, 60000]; // milliseconds until the next attempt to open a stream

export class Updates {
  /**
   * `address()` returns the address of the stream, `poll()` requests changes and returns whether there are more, and
   * `apply(changes)` shows changes. `status(mode, error)` is called with "stream", "poll" or "lost".
   */
  constructor({ address, poll, apply, status }) {
    Object.assign(this, { address, poll, apply, status });
    this.stream = null;
    this.failures = 0;
    this.retryAt = 0;
    this.queue = Promise.resolve(); // changes are applied one after the other
    document.addEventListener("visibilitychange", () => {
      // a hidden page needs no updates, and a browser opens few connections to one server
      if (document.hidden) this.close();
    });
    addEventListener("pagehide", () => this.close());
    this.loop();
  }

  async loop() {
    for (;;) {
      let more = false;
      if (!document.hidden && !this.stream) {
        if (performance.now() >= this.retryAt) this.open();
        else more = await this.request();
      } else if (this.stream && performance.now() - this.heard > SILENCE) this.fail();
      await new Promise((done) => setTimeout(done, more ? 0 : INTERVAL)); // the server reads a large folder in parts
    }
  }

  open() {
    const stream = new EventSource(this.address());
    this.stream = stream;
    this.heard = performance.now();
    const hear = (action) => (event) => {
      if (stream !== this.stream) return;
      this.heard = performance.now();
      this.failures = 0;
      this.status("stream");
      this.queue = this.queue.then(() => action(event.data)).catch((error) => this.status("lost", error.message));
    };
    stream.addEventListener("changes", hear((data) => this.apply(JSON.parse(data))));
    stream.addEventListener("heartbeat", hear(() => {}));
    stream.addEventListener("error", () => stream === this.stream && this.fail());
  }

  /** Close a stream that does not work. Request changes until the next attempt. */
  fail() {
    this.close();
    this.retryAt = performance.now() + Math.min(LAST_RETRY, FIRST_RETRY * 2 ** this.failures);
    this.failures += 1;
  }

  close() {
    this.stream?.close();
    this.stream = null;
  }

  async request() {
    try {
      const more = await this.poll();
      this.status("poll");
      return more;
    } catch (error) {
      this.status("lost", error.message);
      return false;
    }
  }
}
