//! One file a command.

pub(crate) mod backends;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod prove;
pub(crate) mod result;
pub(crate) mod run;
pub(crate) mod show_plan;
pub(crate) mod trust;

use std::collections::BTreeMap;
use std::ffi::OsString;

use belljar::home::{Home, HomeError};

pub(crate) fn environment() -> BTreeMap<OsString, OsString> {
    std::env::vars_os().collect()
}

pub(crate) fn open_home() -> Result<Home, HomeError> {
    Home::open(&environment())
}
