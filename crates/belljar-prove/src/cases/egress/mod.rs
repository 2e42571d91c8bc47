//! The one way out: what the proxy lets through, and what it must never. Everything plays in a network of the
//! stage's own, whose servers count; a run of belljar there has belljar's proxy, and the control has one that
//! asks nothing.

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
