//! The record: log, output, masks, keys, verification, ledger, store.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod full_disk;
mod home;
mod key;
mod ledger_rows;
mod log;
mod mask;
mod old_format;
mod output;
mod read;
mod record_support;
mod recorder;
mod runs;
mod store_runs;
mod verify;
