//! Tests KV in a real store.

mod redis;
