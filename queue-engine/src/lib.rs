//! Verbs semantics of the rings: fetch, keys, receive matching, completions, flushing, events

#![forbid(unsafe_code)]
