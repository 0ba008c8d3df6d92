// What a host has of its own and no server knows of: cancel tokens, and a meter with its listeners.

/** Thrown by the throwing check of a token that was cancelled. */
export class Cancelled extends Error {
  constructor(reason) {
    super(`cancelled: ${reason}`);
    this.reason = reason;
  }
}

/** A request to stop. Each check takes it, so it is heard once. */
export class CancelToken {
  constructor() {
    this.reason = null;
  }

  cancel(reason) {
    this.reason = reason;
  }

  /** The reason, or null when nobody asked since the last check. */
  take() {
    const reason = this.reason;
    this.reason = null;
    return reason;
  }

  throwIfCancelled() {
    const reason = this.take();
    if (reason !== null) throw new Cancelled(reason);
  }
}

/** Hands measured events to those who listen to their name. */
export class Meter {
  constructor() {
    this.listeners = new Map();
  }

  attach(event, listener) {
    this.listeners.set(event, [...(this.listeners.get(event) ?? []), listener]);
  }

  emit(event, values, labels) {
    for (const listener of this.listeners.get(event) ?? []) listener(values, labels);
  }
}
