//! Attacks on the egress proxy.
//!
//! They run in a test network whose servers count connections. A run there uses belljar's proxy; the control uses a
//! proxy that allows everything.

mod addresses;
mod direct;
mod lists;
mod names;
mod requests;
mod secret_places;
mod secrets;
mod trial;

use crate::case::Case;

pub(super) fn cases() -> Vec<Case> {
    [
        addresses::CASES,
        direct::CASES,
        names::CASES,
        requests::CASES,
        lists::CASES,
        secrets::CASES,
        secret_places::CASES,
    ]
    .concat()
}
