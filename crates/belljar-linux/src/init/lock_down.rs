//! The lock-down as two lists of steps: what PID 1 does once, and what each command's process does before it attests.
//!
//! Both lists are always run whole and in order. Nothing, no argument and no variable, leaves a step out; the tests
//! do, to show that the comparison with the expectation then refuses the command.

use belljar_spec::wire::InitSetup;

use super::confine::{self, ConfineError, LockDownSetup};

/// One mechanism.
struct LockDownStep {
    /// For the tests, which name the step that they leave out.
    #[cfg(test)]
    name: &'static str,
    apply: fn(&LockDownSetup<'_>) -> Result<(), ConfineError>,
}

macro_rules! steps {
    ($($name:ident,)+) => {
        &[$(
            LockDownStep {
                #[cfg(test)]
                name: stringify!($name),
                apply: confine::$name,
            },
        )+]
    };
}

/// PID 1's own; every command inherits it.
const INIT: &[LockDownStep] = steps![
    // In PID 1 and not in each command: one domain, in which the commands can debug each other.
    landlock,
];

/// The descriptors were arranged before: the pipe for the report is one of them.
const COMMAND: &[LockDownStep] = steps![
    // First, so that the limits hold for everything below. They are never raised, so this needs no capability.
    limit_resources,
    // Needs CAP_SETPCAP, so before the capabilities are dropped.
    empty_bounding_set,
    // Needs CAP_SETUID and CAP_SETGID, so before the capabilities are dropped.
    change_user,
    // After the last step that needs one. A change between two ordinary users drops none by itself.
    drop_capabilities,
    // Before the filter: the kernel refuses the filter of an unprivileged process without it.
    no_new_privileges,
    // Last: it forbids what every step above does.
    load_filter,
];

/// For PID 1, before its first command.
pub(super) fn init(setup: &InitSetup) -> Result<(), ConfineError> {
    let setup = LockDownSetup { init: setup, listener_socket: None };
    INIT.iter().try_for_each(|step| (step.apply)(&setup))
}

/// For a process that is about to become a command.
pub(super) fn command(setup: &LockDownSetup<'_>) -> Result<(), ConfineError> {
    COMMAND.iter().try_for_each(|step| (step.apply)(setup))
}

#[cfg(test)]
pub(super) mod tests;
