/* The search of pages that are opened from the disk. Browsers refuse workers there, so the search runs in a hidden frame.
   Takes the place of the shim that MkDocs Material would load from the network; the plugin knows it by its name. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html>";
      frame.addEventListener("load", () => this.start(frame.contentWindow, String(address)), { once: true });
      document.body.appendChild(frame);
    }

    start(inside, address) {
      inside.postMessage = (data) => this.answer(data);
      inside.importScripts = () => undefined; // languages other than English: these pages have none
      const script = inside.document.createElement("script");
      script.src = address;
      script.addEventListener("load", () => {
        this.inside = inside;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      });
      inside.document.body.appendChild(script);
    }

    answer(data) {
      const message = new MessageEvent("message", { data });
      this.dispatchEvent(message);
      if (this.onmessage) this.onmessage(message);
    }

    postMessage(data) {
      if (this.inside) this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
      else this.waiting.push(data);
    }
  };
}
