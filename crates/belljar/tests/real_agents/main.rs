//! The real agents against a local model service: `cargo xtask test agents` installs them and runs these tests.
//!
//! Every other run leaves them out, by `default-filter` in `.config/nextest.toml` and because they are marked as
//! ignored. Without the agents a test here fails. Nothing is sent to a real service: the runs are in a network of the
//! test's own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test that cannot be set up stops, and says why"
)]

mod crash;
mod gateway;
mod key;
mod limits;
mod login;
mod sessions;
mod stage;
mod terminal;
mod work;

/// Each of these scenarios with an agent, in the jail as root and as an ordinary user, and on Docker.
macro_rules! scenarios_of {
    ($module:ident, $agent:ident, $($scenario:ident::$name:ident),*) => {
        mod $module {
            $(mod $name {
                use belljar_testkit::RealAgent;

                use crate::stage::{Place, with};

                #[test]
                #[ignore = "needs the real agents: cargo xtask test agents"]
                fn as_root() {
                    with(RealAgent::$agent, Place::JailAsRoot, crate::$scenario::$name);
                }

                #[test]
                #[ignore = "needs the real agents: cargo xtask test agents"]
                fn as_user() {
                    with(RealAgent::$agent, Place::JailAsUser, crate::$scenario::$name);
                }

                #[test]
                #[ignore = "needs the real agents: cargo xtask test agents"]
                fn on_docker() {
                    with(RealAgent::$agent, Place::Docker, crate::$scenario::$name);
                }
            })*
        }
    };
}

macro_rules! for_every_agent {
    ($($scenario:ident::$name:ident),* $(,)?) => {
        scenarios_of!(real_claude, Claude, $($scenario::$name),*);
        scenarios_of!(real_codex, Codex, $($scenario::$name),*);
        scenarios_of!(real_gemini, Gemini, $($scenario::$name),*);
    };
}

for_every_agent![
    work::a_tool_call_and_an_edit,
    work::a_service_that_fails,
    sessions::resume_continues_the_session,
    sessions::fork_has_a_copy_of_the_session,
    crash::a_killed_supervisor,
    limits::max_turns,
    limits::max_tokens,
    limits::out_of_memory,
    key::never_inside,
];
