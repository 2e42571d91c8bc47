//! Decides what a run may reach: allow-list rules, the phase they apply to, and budgets. No I/O.

pub(crate) mod budget;
mod list_change;
mod rules;

pub(crate) use list_change::{Grant, GrantKind};
pub(crate) use rules::{AddressScope, Allowance, Denial, Policy, PolicyPhase, RuleScope, is_login};
