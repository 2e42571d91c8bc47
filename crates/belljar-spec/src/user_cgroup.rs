//! The name of the control group that `belljar setup` gives to an ordinary user.

/// In each hierarchy, at its top: `setup` makes it, and the launcher of that user looks for it.
pub fn user_cgroup(uid: u32) -> String {
    format!("belljar-user-{uid}")
}
