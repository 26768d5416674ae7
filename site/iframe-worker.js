// Search when the site is opened from a file: browsers start no worker there, so a hidden frame
// runs the worker's script. mkdocs-material's offline plugin would fetch such a script instead.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = frame.contentDocument.createElement("script");
      this.loaded = new Promise((done) => (script.onload = done));
      script.src = url;
      frame.contentDocument.body.append(script);
    }
    postMessage(data) {
      const event = new MessageEvent("message", { data });
      this.loaded.then(() => this.inside.dispatchEvent(event));
    }
  };
