//! The contract: manifest, layers, resolution, trust, ceiling, schema, wire format.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod ceiling;
mod ceiling_spec;
mod common;
mod layers;
mod manifest;
mod manifest_print;
mod resolve;
mod resolve_network;
mod schema;
mod trust;
mod values;
mod wire_frames;
mod wire_mux;
mod wire_resume;
